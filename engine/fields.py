"""The fields of a request's body, each read as what it has to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from engine.errors import InvalidRequest

Number = TypeVar("Number", int, float)


class Fields:
    """A JSON object; ``null`` is as good as absent. All that it raises is ``InvalidRequest`` naming the field."""

    def __init__(self, values: Mapping[str, Any], within: str = "") -> None:
        self._values = values
        self._within = within

    @classmethod
    def decode(cls, body: bytes) -> Fields:
        """Of a request's body."""
        try:
            return cls(msgspec.json.decode(body, type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not a JSON object: {error}") from error

    def raw(self, name: str) -> Any:
        """The value as it is, None where there is none."""
        return self._values.get(name)

    def wrong(self, name: str, what: str) -> InvalidRequest:
        """The error that says what a field has to be."""
        field = self._within + name
        return InvalidRequest(f"{field} has to be {what}", field)

    def text(self, name: str, default: str | None = None) -> str | None:
        """A text."""
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a text")
        return default if value is None else value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return default if value is None else value

    def number(self, name: str, default: Number, low: Number, high: Number) -> Number:
        """A number from ``low`` to ``high``, whole if ``default`` is."""
        value = self.raw(name)
        if value is None:
            return default
        whole = isinstance(default, int)
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
            raise self.wrong(name, f"a {'whole ' * whole}number from {low} to {high}")
        return type(default)(value)

    def items(self, name: str, kind: type, what: str, most: int) -> list[Any]:
        """A list of at most ``most`` things of one kind; none where it is absent."""
        value = self.raw(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > most or any(type(one) is not kind for one in value):
            raise self.wrong(name, f"a list of at most {most} {what}")
        return value

    def inner(self, name: str) -> Fields | None:
        """An object within, None where there is none."""
        value = self.raw(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return None if value is None else Fields(value, f"{self._within}{name}.")

    def plain(self) -> dict[str, Any]:
        """All fields as they are."""
        return dict(self._values)
