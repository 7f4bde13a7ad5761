"""What is known of an answer before its first piece."""

from __future__ import annotations

import msgspec


class Head(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Who answers, and in which form. ``model`` is the name that stands in the pieces.

    ``streamed``: the pieces are server-sent events, with the usage and ``[DONE]``; otherwise they are one JSON body.
    ``leader`` is the ``traceparent`` of the request that made the call, "" where nobody traces it.
    """

    model: str
    deployment: str
    engine: str
    precision: str
    streamed: bool
    leader: str = ""


encode_head = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(Head).decode
