"""Plays what real engines answered (``tests/wire``) from a scripted engine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import Script, text, whole
from engines.signals import Gate

WIRE = Path(__file__).parent.parent / "wire"
NDJSON = {"content-type": "application/x-ndjson"}


@cache
def exchange_of(name: str) -> dict[str, Any]:
    """A recorded exchange, such as ``"ollama/0.24/chat_stream"``."""
    exchange: dict[str, Any] = json.loads((WIRE / f"{name}.json").read_text())
    return exchange


def recorded(name: str, gate: Gate | None = None) -> Script:
    """The recorded answer: its status, headers and body, line by line where it was a stream of lines."""
    exchange = exchange_of(name)
    if "lines" in exchange:
        return lines(*(line.rstrip("\n") for line in exchange["lines"] if line != "..."), gate=gate)
    headers = {"content-type": exchange["headers"].get("Content-Type") or exchange["headers"].get("Content-type", "")}
    if "json" in exchange:
        return whole(exchange["json"], exchange["status"], headers)
    return text(exchange["text"], exchange["status"], headers)


def lines(*values: str | dict[str, Any], clean: bool = True, gate: Gate | None = None) -> Script:
    """A stream of NDJSON lines, one write each; without ``clean`` the connection drops after them.

    With a ``gate`` each line waits for a credit.
    """

    async def script(exchange: Exchange) -> None:
        await exchange.head(headers=NDJSON)
        for value in values:
            if gate is not None:
                await gate.pass_through()
            line = value if isinstance(value, str) else json.dumps(value)
            await exchange.data(line.encode() + b"\n")
        if clean:
            await exchange.end()
        else:
            exchange.cut()

    return script


def play_ollama(engine: ScriptedEngine, version: str) -> None:
    """Give a scripted engine the side paths of a real Ollama with the models smollm2 and smollm2-tools."""
    where = f"ollama/{version}"
    tags = json.loads(json.dumps(exchange_of(f"{where}/tags")["json"]))
    tools = {**tags["models"][0], "name": "smollm2-tools:latest", "model": "smollm2-tools:latest", "digest": "b0b"}
    tags["models"].append(tools)

    async def show(exchange: Exchange) -> None:
        names = {"smollm2:latest": "show", "smollm2-tools:latest": "show_tools"}
        await recorded(f"{where}/{names.get(exchange.request.json['model'], 'show_missing')}")(exchange)

    engine.routes = {
        "GET /api/version": recorded(f"{where}/version"),
        "GET /api/tags": whole(tags),
        "GET /api/ps": recorded(f"{where}/ps_loaded"),
        "POST /api/show": show,
    }
