"""A first configuration, with comments, from the engines that run."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from adapters.base import EngineDescription, ModelDescription
from gateway.names import logical_name
from gateway.offline import watching
from gateway.settings import Settings
from policies.types import Precision

_PLAIN = re.compile(r"[A-Za-z0-9][\w./:-]*[\w/]", re.ASCII)

_HEAD = """\
# Paceline's configuration. Everything may be left out; docs/configuration.md has every setting.
# Check it with `paceline doctor`, use it with `paceline up --config FILE`.

server:
  host: 127.0.0.1   # this machine only; other addresses need keys
  port: 7223

# Keys: `paceline key --name alice` makes one and prints these lines.
# auth:
#   keys:
#     - name: alice
#       hash: sha256:…

"""

_NO_ENGINES = """\
# No engine was found on the usual ports. One that runs, and one to be started:
# engines:
#   - name: workstation
#     url: http://127.0.0.1:8080
#   - name: own
#     launch:
#       engine: llamacpp
#       model: models/model.gguf
#       context: 4096
#       slots: 2
"""

_TAIL = """
# Also look for engines on this machine's usual ports (left out: only when none are configured above).
# discovery:
#   enabled: true

# What fastest means: latency (total time), ttft (first token), throughput (with the delay for others).
routing:
  objective: latency
"""


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that answered: the name that it will have, its address, and what it says of itself."""

    name: str
    url: str
    description: EngineDescription


def running_engines(settings: Settings) -> list[RunningEngine]:
    """Return the engines that run on this machine now."""

    async def look() -> list[RunningEngine]:
        async with watching(settings) as house:
            return [
                RunningEngine(engine.name, engine.adapter.endpoint.url, engine.description)
                for engine in house.fleet.engines
                if engine.description is not None
            ]

    return asyncio.run(look())


def draft(engines: Sequence[RunningEngine]) -> str:
    """Return the file's text."""
    if not engines:
        return _HEAD + _NO_ENGINES + _TAIL
    return _HEAD + "engines:\n" + "".join(map(_engine, engines)) + _TAIL


def _engine(engine: RunningEngine) -> str:
    description = engine.description
    lines = [f"  # {description.label} {description.version}".rstrip()]
    lines += [f"  #   {_model(model)}" for model in description.models]
    lines += [
        f"  - name: {_text(engine.name)}",
        f"    kind: {_text(description.kind)}",
        f"    url: {_text(engine.url)}",
    ]
    if any(model.precision is Precision.UNKNOWN for model in description.models):
        lines.append("    # precision: bf16   # it does not say; until it is known, it serves only when asked for")
    if names := {model.engine_model: logical_name(model.engine_model) for model in description.models}:
        lines.append("    models:   # its own name: the name that clients ask for")
        lines += [f"      {_text(own)}: {_text(name)}" for own, name in names.items()]
    return "\n".join(lines) + "\n"


def _model(model: ModelDescription) -> str:
    parts = [f"{model.engine_model}: {model.precision} {model.scheme}".rstrip()]
    if model.context is not None:
        parts.append(f"context {model.context}")
    if model.slots is not None:
        parts.append(f"{model.slots} slots")
    return " ".join(", ".join(parts).split())


def _text(value: str) -> str:
    """Return a string as YAML: plain where it stays a string, else in JSON's quotes, which are YAML's as well."""
    is_plain = _PLAIN.fullmatch(value) is not None and yaml.safe_load(value) == value
    return value if is_plain else json.dumps(value, ensure_ascii=False)
