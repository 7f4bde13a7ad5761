"""What the engine tells of a request: pieces of its answer, then one end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import EngineError
from engine.request import Finish, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens. ``text`` is what can be shown by now: it may lag behind, or be empty. ``logprobs``: one a token."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens: of the prompt, those of it that were found in the prefix cache, and of the answer."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, in milliseconds: until it was admitted, until its first token, until its last one.

    ``batch`` is the mean number of sequences in its steps; ``drafted`` and ``accepted`` count speculated tokens.
    """

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    batch: float
    drafted: int
    accepted: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a request that was served, or cancelled; ``embedding`` for one that pools."""

    finish: Finish
    usage: Usage
    timings: Timings
    embedding: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a request that was not served to its end."""

    error: EngineError


Event = Delta | Done | Failed
Listener = Callable[[Event], None]
"""Called on the engine's thread, so it only hands the event on. One that raises RuntimeError (its event loop is
closed) has left: its request is cancelled."""
