"""A decorator for values: frozen for the type checker, cheap to make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_T]) -> type[_T]:
    """Make a slotted dataclass that nobody may change after it was made.

    The type checker sees to that. At run time it is not frozen: the constructor of a frozen dataclass takes four times
    as long, and a decision makes one of these per deployment.
    """
    return dataclass(slots=True)(cls)
