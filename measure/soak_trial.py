"""One request of a soak: what was asked, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a request is for."""

    ANSWER = "answer"
    """An ordinary one, at one of a few prompt lengths."""
    REPEATED = "repeated"
    """The same greedy prompt every time: the answers should be the same."""
    CANCELLED = "cancelled"
    """Its client leaves in the middle."""
    INVALID = "invalid"
    """One that no engine can do; it should be refused, and harm nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is sent. Lengths in tokens; ``fault`` names what is wrong with an invalid one. The client of a cancelled one
    leaves ``early``, while its prompt is read, or once the answer has begun. ``again`` is how many requests ago the
    same prompt was sent, 0 for a new one.
    """

    role: Role
    stream: bool = True
    prompt_tokens: int = 0
    output_tokens: int = 0
    fault: str = ""
    early: bool = False
    again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one request, the ``number``-th of the soak. Times in seconds.

    ``failure`` is the kind of what went wrong, ``detail`` the engine's words; "" when nothing did. ``answer`` is
    what was written, ``memory_bytes`` what the engine's process held afterwards (``None`` where that cannot be seen).
    """

    number: int
    asked: Asked
    failure: str = ""
    detail: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    total_s: float = 0.0
    answer: str = ""
    memory_bytes: int | None = None
