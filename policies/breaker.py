"""A circuit breaker that lets exactly one probe through, and whose every state ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FAILURES_TO_OPEN = 3
FIRST_OPEN_S = 2.0
LONGEST_OPEN_S = 60.0


class State(StrEnum):
    """Closed lets all through, open none, half-open one at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of state, worth one line in a log. ``open_s`` is how long it stays open."""

    before: State
    after: State
    failures: int = 0
    open_s: float = 0.0

    def __str__(self) -> str:
        if self.after is State.OPEN:
            return f"breaker {self.before} -> open for {self.open_s:.0f} s after {self.failures} failures in a row"
        return f"breaker {self.before} -> {self.after}"


class Pass:
    """Leave to make one call. The first of its three endings counts; whoever got it ends it in any case."""

    __slots__ = ("_breaker", "_ended", "_era", "is_probe")

    def __init__(self, breaker: Breaker, era: int, *, is_probe: bool) -> None:
        self._breaker = breaker
        self._era = era
        self._ended = False
        self.is_probe = is_probe

    def succeeded(self) -> Change | None:
        """The engine answered, were it with a refusal of the request itself."""
        return self._breaker._on_success() if self._ends() else None

    def failed(self, now: float) -> Change | None:
        """The engine failed in a way that counts: unreachable, broken, silent, interrupted."""
        return self._breaker._on_failure(now) if self._ends() else None

    def abandoned(self) -> Change | None:
        """The call ended without a verdict: cancelled, busy, loading. The next call may probe at once."""
        if self._ends() and self.is_probe:
            self._breaker._probing = False
        return None

    def _ends(self) -> bool:
        """Whether this ending counts: it is the first, and the breaker has not changed since the call began."""
        if self._ended:
            return False
        self._ended = True
        return self._era == self._breaker._era


class Breaker:
    """Opens after three counted failures in a row: for 2 s, then twice as long after each failed probe, up to 60 s.

    A state's changes are returned by the calls that cause them, for a log. Times are seconds on the caller's clock.
    """

    __slots__ = ("_era", "_failures", "_open_s", "_open_until", "_probing", "state")

    def __init__(self) -> None:
        self.state = State.CLOSED
        self._era = 0
        self._failures = 0
        self._open_s = FIRST_OPEN_S
        self._open_until = 0.0
        self._probing = False

    def allows(self, now: float) -> bool:
        """Return whether a call would be let through now. Changes nothing."""
        if self.state is State.CLOSED:
            return True
        return not self._probing and (self.state is State.HALF_OPEN or now >= self._open_until)

    def open_for_s(self, now: float) -> float:
        """Return the seconds until a probe may be made; 0 when one may."""
        return max(0.0, self._open_until - now) if self.state is State.OPEN else 0.0

    def enter(self, now: float) -> tuple[Pass | None, Change | None]:
        """Ask to make a call; ``None`` when it must not be made. When the open time is over, one call is the probe."""
        if not self.allows(now):
            return None, None
        if self.state is State.CLOSED:
            return Pass(self, self._era, is_probe=False), None
        change = None if self.state is State.HALF_OPEN else self._become(State.HALF_OPEN)
        self._probing = True
        return Pass(self, self._era, is_probe=True), change

    def _on_success(self) -> Change | None:
        self._failures = 0
        if self.state is State.CLOSED:
            return None
        self._open_s = FIRST_OPEN_S
        return self._become(State.CLOSED)

    def _on_failure(self, now: float) -> Change | None:
        self._failures += 1
        if self.state is State.CLOSED and self._failures < FAILURES_TO_OPEN:
            return None
        if self.state is State.HALF_OPEN:
            self._open_s = min(LONGEST_OPEN_S, 2.0 * self._open_s)
        self._open_until = now + self._open_s
        return self._become(State.OPEN)

    def _become(self, state: State) -> Change:
        change = Change(self.state, state, self._failures, self._open_s if state is State.OPEN else 0.0)
        self.state = state
        self._era += 1
        self._probing = False
        return change
