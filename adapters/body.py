"""A request body, decoded once: the top-level fields as the exact bytes that the client sent."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from adapters.heard import NOT_JSON
from policies.types import Operation

Raw = msgspec.Raw

PROMPT_FIELD = {Operation.CHAT: "messages", Operation.COMPLETION: "prompt", Operation.EMBEDDINGS: "input"}
"""What holds the prompt, by operation."""

_decoder = msgspec.json.Decoder(dict[str, Raw])


class BodyError(ValueError):
    """The body is not what it should be. ``param`` names the field, where it is one field's fault."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class Body:
    """The fields of a JSON object, undecoded: what nobody looks at goes on byte for byte."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Raw | bytes]) -> None:
        self.fields = fields

    @classmethod
    def parse(cls, data: bytes) -> Body:
        """Decode the outermost object. Raises ``BodyError`` with the position for anything else."""
        try:
            if not data.isascii():
                data.decode()
            return cls(_decoder.decode(data))  # type: ignore[arg-type]
        except msgspec.ValidationError:
            raise BodyError("the body has to be a JSON object") from None
        except NOT_JSON as error:
            raise BodyError(f"the body is not valid JSON: {error}") from None

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def raw(self, name: str) -> bytes | None:
        """The bytes of a field's value, or ``None`` when absent."""
        value = self.fields.get(name)
        return None if value is None else bytes(value)

    def get(self, name: str, type_: Any = Any) -> Any:
        """Decode one field as ``type_`` (a type that msgspec knows); ``None`` when absent or null.

        Raises ``BodyError`` that names the field and says what was expected.
        """
        value = self.fields.get(name)
        if value is None:
            return None
        try:
            return _decoder_of(type_).decode(value)
        except NOT_JSON as error:
            raise BodyError(f"'{name}': {error}", param=name) from None

    def encode(self, set_: dict[str, object] | None = None, *, drop: frozenset[str] = frozenset()) -> bytes:
        """Write the object again: ``set_`` replaces or adds, ``drop`` leaves out, the rest is untouched."""
        fields: dict[str, object] = {name: value for name, value in self.fields.items() if name not in drop}
        if set_:
            fields.update(set_)
        return msgspec.json.encode(fields)


@cache  # as many as there are fields that somebody looks at: the types stand in the code
def _decoder_of(type_: Any) -> msgspec.json.Decoder[Any]:
    """Making a decoder takes longer than decoding a field with it."""
    return msgspec.json.Decoder(type_ if type_ is Any else type_ | None)
