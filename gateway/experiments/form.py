"""Whether an answer has the form that its request asks for: the quality suite's checks that need no known answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adapters.body import Body
from gateway.replay import joined
from measure.quality.checks import Json, NoLoop, json_problem
from measure.quality.reply import Reply, read_reply
from policies.types import Operation

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def fault_of(operation: Operation, body: Body, said: bytes) -> str | None:
    """Return what is wrong with an answer, completing "the answer …"; "" when nothing is, ``None`` when it cannot be
    told. ``said`` is the whole of it as it was sent, a stream or one body."""
    try:
        answer = _decode(joined(said, operation) if said.startswith((b"data:", b":")) else said)
        asked = {name: msgspec.json.decode(body.fields[name]) for name in ("response_format", "tools") if name in body}
    except (ValueError, RecursionError):
        return None
    reply = _reply(operation, answer)
    if reply.was_cut:
        return NoLoop().problem(reply)
    if reply.calls:
        return _fault_of_calls(reply, asked.get("tools"))
    return NoLoop().problem(reply) or _fault_of_format(reply, asked.get("response_format"))


def _reply(operation: Operation, answer: Mapping[str, Any]) -> Reply:
    if operation is Operation.CHAT:
        return read_reply(answer, None)
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    return Reply(text=str(first.get("text") or ""), finish=str(first.get("finish_reason") or ""))


def _fault_of_format(reply: Reply, wanted: object) -> str:
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind not in ("json_object", "json_schema"):
        return ""
    named = wanted.get("json_schema") if isinstance(wanted, dict) else None
    schema = named.get("schema") if isinstance(named, dict) else None
    return Json(schema if isinstance(schema, dict) else _ANY_OBJECT).problem(reply)


def _fault_of_calls(reply: Reply, tools: object) -> str:
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    known = {each.get("name"): each.get("parameters") for each in functions if isinstance(each, dict)}
    for call in reply.calls:
        if call.name not in known:
            return f"calls {call.name!r}, which there is not"
        schema = known[call.name]
        if fault := json_problem(call.arguments, schema if isinstance(schema, dict) else _ANY_OBJECT):
            return f"calls {call.name} with arguments that will not do: it {fault}"
    return ""
