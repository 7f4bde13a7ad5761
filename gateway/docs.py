"""Writes `docs/configuration.md` from the settings themselves: `python -m gateway.docs docs/configuration.md`."""

from __future__ import annotations

import json
import sys
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.settings import Settings
from gateway.settings_errors import member_suffix, nested_model

HEAD = """# Configuration

This page is made from the settings themselves (`python -m gateway.docs docs/configuration.md`).

Everything may be left out: without a file, Paceline finds the engines on this machine's usual ports and serves on
`127.0.0.1:7223`. `paceline init` writes a file from what it finds, `paceline doctor` checks one.

- The file is the one after `--config`, else the one in `PACELINE_CONFIG`, else `paceline.yaml` in the working folder.
- Every setting is also a variable, which comes before the file: `PACELINE_` and the path, joined by two underscores:
  `PACELINE_SERVER__PORT=8000`. Lists and mappings are JSON there: `PACELINE_ENGINES='[{"name": "a", "url": "…"}]'`.
- A key or variable that is no setting is refused, with the nearest one that is.
- Keys of clients stand there as hashes (`paceline key` makes one); an engine's key is best kept in a variable that the
  file names.

```yaml
server:
  port: 7223
engines:
  - name: workstation
    url: http://127.0.0.1:8080
  - name: own
    launch:
      engine: llamacpp
      model: models/SmolLM2-135M-Instruct-Q8_0.gguf
      context: 4096
      slots: 2
models:
  SmolLM2-135M-Instruct:
    aliases: [small]
```
"""


def configuration_page() -> str:
    """Return the page."""
    parts = [HEAD]
    plain = [(name, field) for name, field in Settings.model_fields.items() if nested_model(field.annotation) is None]
    for name, field in Settings.model_fields.items():
        if (group := nested_model(field.annotation)) is not None:
            parts += _group(group, name + member_suffix(field.annotation))
    parts.append("\n## Others\n\n" + _table(plain))
    return "".join(parts)


def _group(group: type[BaseModel], path: str) -> list[str]:
    """One group's section, then those of the groups in it."""
    fields = list(group.model_fields.items())
    parts = [f"\n## `{path}`\n\n{(group.__doc__ or '').strip()}\n\n{_table(fields)}"]
    for name, field in fields:
        if (inner := nested_model(field.annotation)) is not None:
            parts += _group(inner, f"{path}.{name}{member_suffix(field.annotation)}")
    return parts


def _table(fields: list[tuple[str, FieldInfo]]) -> str:
    lines = ["| setting | type | default | meaning | example |", "|---|---|---|---|---|"]
    lines += [
        f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {_escaped(field.description or '')} "
        f"| {_example(field)} |"
        for name, field in fields
    ]
    return "\n".join(lines) + "\n"


def _type(annotation: Any) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(args[0])
    if origin in (typing.Union, types.UnionType):
        return ", ".join(_type(arg) for arg in args if arg is not type(None))
    if origin is tuple:
        return f"list of {_type(args[0])}"
    if origin is dict:
        return f"mapping to {_type(args[1])}"
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return " or ".join(f"`{value}`" for value in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "group"
    names = {int: "number", float: "number", bool: "true or false", str: "text", Path: "path", ByteSize: "size"}
    return names.get(annotation, "secret" if "Secret" in str(annotation) else "any")


def _default(field: FieldInfo) -> str:
    default = field.default
    if default is PydanticUndefined:
        return "" if field.default_factory is not None else "**needed**"
    if default is None or default == "" or default == () or default == {} or isinstance(default, BaseModel):
        return ""
    if isinstance(default, ByteSize):
        return f"`{default.human_readable()}`"
    return _code(default)


def _example(field: FieldInfo) -> str:
    examples = field.examples or []
    return _code(examples[0]) if examples and examples[0] != [] else ""


def _code(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"`{_escaped(text)}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(configuration_page(), encoding="utf-8")
