"""What is wrong with a configuration, said so that it can be put right: where, what, and what to write instead."""

from __future__ import annotations

import difflib
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from gateway.redaction import redact

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from gateway.settings import Settings
    from gateway.settings_document import Document

Location = tuple[str | int, ...]

MAX_SHOWN = 60
_PREFIX = "PACELINE_"
_OURS = frozenset({"PACELINE_CONFIG", "PACELINE_DATA", "PACELINE_KEY"})
"""Variables with a meaning of their own: the file, the data folder, the key that the command line shows."""
_KUBERNETES = re.compile(r"PACELINE\w*_(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?=.*|=\w+://.*))")
"""What Kubernetes sets in every pod beside a Service of such a name."""
_SECRET_PARTS = frozenset({"auth", "keys", "hash", "api_key", "api_key_env", "env", "options"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: ``where`` (file and line, or variable, and path), ``what`` is wrong with it, ``fix``."""

    where: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where} {self.what}\n    {self.fix}"


class SettingsError(ValueError):
    """A configuration that cannot be used; ``problems`` holds all that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def explain(error: ValidationError, model: type[BaseModel], document: Document) -> list[Problem]:
    """Translate pydantic's findings. Values that may be secret are never repeated."""
    return [_problem(detail, model, document) for detail in error.errors(include_url=False)]


def _problem(detail: ErrorDetails, model: type[BaseModel], document: Document) -> Problem:
    location = tuple(part for part in detail["loc"] if part != "[key]")
    path = dotted(location)
    variable = _variable(location)
    place = f"${variable}" if variable else document.where(location)
    where = f"{place}: {path}" if place and path else place or path or "the configuration"
    if detail["type"] == "extra_forbidden":
        return Problem(where, "is not a setting", _nearest(location, model))
    if detail["type"] == "missing":
        return Problem(where, "is missing", "Add it." + _hint(location, model))
    if detail["type"] == "value_error":
        return Problem(where, "cannot be used", _sentence(redact(str(detail["ctx"]["error"]))))
    shown = "has a value that" if _is_secret(location) else _shown(detail["input"])
    return Problem(where, f"{shown} cannot be used", _sentence(_expected(detail)) + _hint(location, model))


def dotted(location: Location) -> str:
    """Return a path as people write it: ``engines[0].url``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _variable(location: Location) -> str:
    for length in range(len(location), 0, -1):
        name = _PREFIX + "__".join(str(part) for part in location[:length]).upper()
        for variable in os.environ:
            if variable.upper() == name and os.environ[variable]:
                return variable
    return ""


def _is_secret(location: Location) -> bool:
    return not _SECRET_PARTS.isdisjoint(str(part) for part in location)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return "is a mapping, which" if isinstance(value, dict) else "is a list, which"
    if value is None:
        return "is empty, which"
    text = redact(repr(value))
    return f"is {text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '…'}, which"


def _expected(detail: ErrorDetails) -> str:
    if detail["type"] == "string_type" and isinstance(detail["input"], bool):
        return "It has to be a string: YAML reads on, off, yes and no as booleans, so put it in quotes"
    if detail["type"] == "string_type" and isinstance(detail["input"], int | float):
        return "It has to be a string: put it in quotes"
    if detail["type"] in ("model_type", "dict_type"):
        return "It has to be a mapping: `name: value` lines below it, indented"
    if detail["type"] in ("tuple_type", "list_type"):
        return "It has to be a list: `- item` lines below it, or JSON in the variable"
    if detail["type"] == "string_pattern_mismatch" and detail["loc"][-1] == "hash":
        return "It has to be the line that `paceline key` prints, sha256: and 64 hexadecimal digits"
    return detail["msg"].replace("Input should be", "It has to be").replace("String should", "It should")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _hint(location: Location, model: type[BaseModel]) -> str:
    example = _example(location, model)
    return "" if example is None else f" For example `{location[-1]}: {example}`."


def _example(location: Location, model: type[BaseModel]) -> object:
    parent = _model_at(location[:-1], model)
    field = parent.model_fields.get(str(location[-1])) if parent and location else None
    if field is None or not field.examples or isinstance(field.examples[0], list | dict):
        return None
    example = field.examples[0]
    return str(example).lower() if isinstance(example, bool) else example


def _nearest(location: Location, model: type[BaseModel]) -> str:
    wrong = str(location[-1]).casefold().replace("-", "_")
    parent = _model_at(location[:-1], model)
    siblings = list(parent.model_fields) if parent else []
    if near := difflib.get_close_matches(wrong, siblings, n=1, cutoff=0.6):
        return f"Did you mean `{dotted((*location[:-1], near[0]))}`?"
    everywhere = {path.rsplit(".", 1)[-1]: path for path in reversed(list(paths(model)))}
    if near := difflib.get_close_matches(wrong, everywhere, n=1, cutoff=0.8):
        return f"Did you mean `{everywhere[near[0]]}`?"
    return f"Here stand: {', '.join(siblings)}."


def _model_at(location: Location, model: type[BaseModel]) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int) or current is None:
            continue
        field = current.model_fields.get(part)
        if field is not None:
            current = nested_model(field.annotation)
    return current


def nested_model(annotation: object) -> type[BaseModel] | None:
    """Return the model inside an annotation: ``Model | None``, ``tuple[Model, ...]``, ``dict[str, Model]``."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for part in typing.get_args(annotation) if (found := nested_model(part))), None)


def member_suffix(annotation: object) -> str:
    """Return what stands for one member in the path of a list (``[]``) or a mapping (``.NAME``) of groups."""
    origin = typing.get_origin(annotation)
    return "[]" if origin is tuple else ".NAME" if origin is dict else ""


def paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Return the path of each setting: ``engines[].url``, ``models.NAME.aliases``."""
    for name, field in model.model_fields.items():
        path = prefix + name
        yield path
        inner = nested_model(field.annotation)
        if inner is not None:
            yield from paths(inner, path + member_suffix(field.annotation) + ".")


def unknown_variables(settings: Settings, environ: Mapping[str, str]) -> list[Problem]:
    """Return a problem for each `PACELINE_*` variable that names no setting: nobody would notice a typo there.

    Variables that the settings name as a key's place are not settings, nor are those that Kubernetes sets.
    """
    named = {key.env for key in settings.auth.keys} | {engine.api_key_env for engine in settings.engines}
    groups = tuple(type(settings).model_fields)
    problems = []
    for variable in sorted(environ):
        if not variable.upper().startswith(_PREFIX) or variable in named or variable in _OURS:
            continue
        top = variable.upper().removeprefix(_PREFIX).split("__")[0].lower()
        if top not in groups and not _KUBERNETES.fullmatch(f"{variable}={environ[variable]}"):
            problems.append(Problem(f"${variable}", "names no setting", _nearest_variable(variable, type(settings))))
    return problems


def absent_variables(settings: Settings, environ: Mapping[str, str]) -> list[Problem]:
    """Return a problem for each variable that should hold a key and does not."""
    named = [(f"auth.keys[{index}].env", key.env) for index, key in enumerate(settings.auth.keys)]
    named += [(f"engines[{index}].api_key_env", engine.api_key_env) for index, engine in enumerate(settings.engines)]
    named += [(f"cache.encryption[{index}].env", key.env) for index, key in enumerate(settings.cache.encryption)]
    return [
        Problem(path, f"names the variable {variable}, which is not set", f"Set it: `export {variable}=…`.")
        for path, variable in named
        if variable and not environ.get(variable)
    ]


def _nearest_variable(variable: str, model: type[BaseModel]) -> str:
    known = [_PREFIX + path.replace(".", "__").upper() for path in paths(model) if "[]" not in path]
    near = difflib.get_close_matches(variable.upper(), known, n=1, cutoff=0.6)
    return f"Did you mean `{near[0]}`?" if near else "Nested names join with two underscores: `PACELINE_SERVER__PORT`."
