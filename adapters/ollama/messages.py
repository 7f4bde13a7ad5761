"""Messages of OpenAI's chat API as Ollama wants them: bare base64 images, tool arguments as objects."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from adapters.errors import Rejected
from adapters.heard import NOT_JSON

_NULL: Final = b"null"
_ROLES: Final = {"developer": "system", "function": "tool"}


class _ImageUrl(msgspec.Struct):
    url: str


class _Audio(msgspec.Struct):
    data: str


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    image_url: _ImageUrl | str = ""
    input_audio: _Audio | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: Raw = Raw(b'""')


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str = ""


def convert(messages: bytes) -> tuple[list[dict[str, object]], bool]:
    """Return the messages and whether they hold images or sound. Raises ``Rejected`` that says which is wrong."""
    converted: list[dict[str, object]] = []
    names: dict[str, str] = {}
    has_media = False
    for index, message in enumerate(_decode(messages, list[dict[str, Raw]], "messages")):
        where = f"messages[{index}]"
        new: dict[str, object] = dict(message)
        role = _decode(message.get("role", Raw(b'""')), str, f"{where}.role")
        new["role"] = _ROLES.get(role, role)
        new["content"], images = _content(message.get("content", Raw(_NULL)), f"{where}.content")
        if images:
            new["images"] = images
        has_media = has_media or "images" in new
        for spelling in ("reasoning", "reasoning_content"):
            thinking = new.pop(spelling, None)
            if isinstance(thinking, Raw) and bytes(thinking) != _NULL:
                new["thinking"] = thinking
        calls = new.pop("tool_calls", None)
        if isinstance(calls, Raw) and bytes(calls) != _NULL:
            new["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls", names)
        if new["role"] == "tool" and "tool_name" not in new:
            name = _tool_name(message, names, where)
            if name:
                new["tool_name"] = name
        converted.append(new)
    if not converted:
        raise Rejected("'messages' has to hold at least one message", param="messages")
    return converted, has_media


def _content(raw: Raw, where: str) -> tuple[object, list[str]]:
    data = bytes(raw)
    if data.startswith(b'"'):
        return raw, []
    if data == _NULL:
        return "", []
    texts: list[str] = []
    media: list[str] = []
    for part in _decode(raw, list[_Part], where):
        if part.type == "text":
            texts.append(part.text)
        elif part.type == "image_url":
            url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
            media.append(_base64_of(url))
        elif part.type == "input_audio" and part.input_audio is not None:
            media.append(part.input_audio.data)
        else:
            raise Rejected(
                f"{where}: Ollama takes no parts of type {part.type!r}", param="messages", code="unsupported"
            )
    return "\n".join(texts), media


def _base64_of(url: str) -> str:
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return data
    raise Rejected(
        "Ollama takes an image only as a data URL (data:image/png;base64,…), not as an address to fetch it from",
        param="messages",
        code="unsupported",
    )


def _tool_calls(raw: Raw, where: str, names: dict[str, str]) -> list[dict[str, object]]:
    calls: list[dict[str, object]] = []
    for index, call in enumerate(_decode(raw, list[_ToolCall], where)):
        if call.id:
            names[call.id] = call.function.name
        arguments = _arguments(call.function.arguments, f"{where}[{index}].function.arguments")
        function = {"index": index, "name": call.function.name, "arguments": arguments}
        calls.append({"id": call.id, "function": function})
    return calls


def _arguments(raw: Raw, where: str) -> Raw:
    """The object inside the string. An object that already is one stays."""
    data = bytes(raw)
    if data.startswith(b'"'):
        data = _decode(raw, str, where).encode() or b"{}"
    _decode(Raw(data), dict[str, Raw], where)
    return Raw(data)


def _tool_name(message: dict[str, Raw], names: dict[str, str], where: str) -> str:
    if "name" in message:
        return _decode(message["name"], str | None, f"{where}.name") or ""
    identifier = _decode(message.get("tool_call_id", Raw(_NULL)), str | None, f"{where}.tool_call_id")
    return names.get(identifier or "", "")


def _decode(raw: bytes | Raw, type_: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=type_)
    except NOT_JSON as error:
        raise Rejected(f"'{where}': {error}", param="messages") from None
