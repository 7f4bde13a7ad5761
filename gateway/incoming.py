"""A client's request, read once: the few fields that routing needs, everything else untouched."""

from __future__ import annotations

import msgspec

from adapters.base import Call
from adapters.body import PROMPT_FIELD, Body, BodyError
from gateway.errors import ApiError
from policies.types import Capability, Deployment, Operation
from policies.value import value

IMAGE_TOKENS = 512
"""What an image is taken for when the prompt's length is estimated; engines count 256 to 1,500."""

PREFIX_BLOCK_BYTES = 256


class _Message(msgspec.Struct):
    role: str
    content: msgspec.Raw = msgspec.Raw(b"null")


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Format(msgspec.Struct):
    type: str


_messages = msgspec.json.Decoder(list[_Message])
_parts = msgspec.json.Decoder(list[_Part])


@value
class Incoming:
    """What was read of a request. ``text_bytes`` is the length of its text, ``images`` the number of its images;
    for ``prefix`` and ``messages`` see ``RequestFacts``."""

    operation: Operation
    body: Body
    model: str
    stream: bool
    include_usage: bool
    max_output: int | None
    text_bytes: int
    images: int
    needs: frozenset[Capability]
    prefix: tuple[int, ...]
    messages: tuple[int, ...]
    user: str

    def call_to(
        self,
        deployment: Deployment,
        prompt_tokens: int,
        *,
        include_usage: bool,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Call:
        """Return the call that has a deployment answer it."""
        return Call(
            operation=self.operation,
            body=self.body,
            model=self.model,
            engine_model=deployment.engine_model,
            stream=self.stream,
            include_usage=include_usage,
            prompt_tokens=prompt_tokens,
            max_output=self.max_output,
            context=deployment.context,
            headers=headers,
        )


def read_request(operation: Operation, data: bytes) -> Incoming:
    """Decode a body. Raises ``ApiError`` (400) that names the field and says what was expected."""
    try:
        return _read(operation, Body.parse(data))
    except BodyError as error:
        raise ApiError(400, error.message, param=error.param) from None


def _read(operation: Operation, body: Body) -> Incoming:
    model = body.get("model", str)
    if not model:
        raise BodyError("'model' is required: GET /v1/models lists the names", param="model")
    stream = bool(body.get("stream", bool)) and operation is not Operation.EMBEDDINGS
    options = body.get("stream_options", _StreamOptions) if "stream_options" in body else None
    needs = {operation.capability}
    text_bytes, images, messages = _prompt(operation, body, needs)
    if operation is not Operation.EMBEDDINGS:
        _read_needs(operation, body, needs)
    return Incoming(
        operation=operation,
        body=body,
        model=model,
        stream=stream,
        include_usage=bool(options and options.include_usage),
        max_output=_max_output(body),
        text_bytes=text_bytes,
        images=images,
        needs=frozenset(needs),
        prefix=_prefix_blocks(body.fields[PROMPT_FIELD[operation]]),
        messages=messages,
        user=body.get("user", str) or "" if "user" in body else "",
    )


def _max_output(body: Body) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        if name in body:
            value: int | None = body.get(name, int)
            if value is not None:
                if value < 1:
                    raise BodyError(f"'{name}' has to be 1 or more, it is {value}", param=name)
                return value
    return None


def _prompt(operation: Operation, body: Body, needs: set[Capability]) -> tuple[int, int, tuple[int, ...]]:
    """Return the bytes of text, the number of images, and the hashes of the conversation up to each message's end."""
    field = PROMPT_FIELD[operation]
    raw = body.fields.get(field)
    if raw is None:
        raise BodyError(f"'{field}' is required", param=field)
    if operation is not Operation.CHAT:
        if bytes(memoryview(raw)[:1]) not in (b'"', b"["):
            raise BodyError(f"'{field}' has to be a string or an array", param=field)
        return len(raw), 0, ()
    return _chat_prompt(raw, needs)


def _chat_prompt(raw: msgspec.Raw | bytes, needs: set[Capability]) -> tuple[int, int, tuple[int, ...]]:
    try:
        messages = _messages.decode(raw)
    except msgspec.ValidationError as error:
        raise BodyError(f"'messages': {error}", param="messages") from None
    if not messages:
        raise BodyError("'messages' has to have at least one message", param="messages")
    text_bytes = images = chain = 0
    ends = []
    for index, message in enumerate(messages):
        content = message.content
        chain = hash((chain, message.role, bytes(content)))
        ends.append(chain)
        if bytes(memoryview(content)[:1]) != b"[":
            text_bytes += len(content) + 8
            continue
        try:
            parts = _parts.decode(content)
        except msgspec.ValidationError as error:
            raise BodyError(f"'messages[{index}].content': {error}", param=f"messages[{index}].content") from None
        for part in parts:
            if part.type == "image_url":
                images += 1
                needs.add(Capability.VISION)
            elif part.type == "input_audio":
                needs.add(Capability.AUDIO)
            text_bytes += len(part.text)
    return text_bytes, images, tuple(ends)


def _read_needs(operation: Operation, body: Body, needs: set[Capability]) -> None:
    if "tools" in body and body.get("tools", list[msgspec.Raw]):
        needs.add(Capability.TOOLS)
        choice = body.get("tool_choice", str | dict[str, msgspec.Raw]) if "tool_choice" in body else None
        if choice is not None and choice not in ("auto", "none"):
            needs.add(Capability.TOOL_CHOICE)
    if "response_format" in body:
        wanted = body.get("response_format", _Format)
        if wanted is not None and wanted.type in (Capability.JSON_OBJECT, Capability.JSON_SCHEMA):
            needs.add(Capability(wanted.type))
    if "logprobs" in body:
        logprobs = body.get("logprobs", bool if operation is Operation.CHAT else int)
        if logprobs is not None and logprobs is not False:
            needs.add(Capability.LOGPROBS)
    if "n" in body and (choices := body.get("n", int)) is not None:
        if choices < 1:
            raise BodyError(f"'n' has to be 1 or more, it is {choices}", param="n")
        if choices > 1:
            needs.add(Capability.CHOICES)


def _prefix_blocks(raw: msgspec.Raw | bytes) -> tuple[int, ...]:
    """Hash the leading blocks of the prompt, each hash covering all before it; a partial last block is left out."""
    view = memoryview(raw)
    chain = 0
    blocks = []
    for start in range(0, len(view) - PREFIX_BLOCK_BYTES + 1, PREFIX_BLOCK_BYTES):
        chain = hash((chain, bytes(view[start : start + PREFIX_BLOCK_BYTES])))
        blocks.append(chain)
    return tuple(blocks)
