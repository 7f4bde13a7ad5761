"""How much is taken on at once: limits overall and per key, a bounded queue before them, and a clear no beyond it.

Keys that wait take turns, each in the order of its requests, so that one caller's backlog does not hold up another;
a key at its own limit holds up nobody. Every operation costs the same at any number of requests.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from types import TracebackType

from gateway.errors import ApiError, too_busy
from gateway.settings_parts import KeySettings, LimitSettings

LONGEST_RETRY_AFTER_S = 60.0
UNKNOWN_RETRY_AFTER_S = 2.0
_PACE_WEIGHT = 0.2


class _Pace:
    """The usual time between two places that become free."""

    __slots__ = ("_at", "_interval_s")

    def __init__(self) -> None:
        self._at: float | None = None
        self._interval_s: float | None = None

    def note(self, now: float) -> None:
        if self._at is not None:
            gap = now - self._at
            before = gap if self._interval_s is None else self._interval_s
            self._interval_s = before + _PACE_WEIGHT * (gap - before)
        self._at = now

    def until_free_s(self, ahead: int) -> float:
        """Estimate the seconds until ``ahead`` places and one more have become free."""
        if self._interval_s is None:
            return UNKNOWN_RETRY_AFTER_S
        return min(LONGEST_RETRY_AFTER_S, self._interval_s * (ahead + 1))


class _Key:
    """One key's requests: those that run, and those that wait in their order."""

    __slots__ = ("in_turn", "limit", "name", "pace", "running", "waiters")

    def __init__(self, name: str, limit: int | None) -> None:
        self.name = name
        self.limit = limit
        self.running = 0
        self.waiters: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        self.in_turn = False
        self.pace = _Pace()

    @property
    def full(self) -> bool:
        return self.limit is not None and self.running >= self.limit


class Admission:
    """Counts requests in and out. All of it runs on one event loop, and nothing is held across an await."""

    def __init__(self, limits: LimitSettings, keys: Iterable[KeySettings] = ()) -> None:
        self._limits = limits
        self._limit_of = {key.name: key.max_concurrent or limits.per_key for key in keys}
        self._keys: dict[str, _Key] = {}
        self._turns: deque[_Key] = deque()
        self._pace = _Pace()
        self.running = 0
        self.waiting = 0

    def admitted(self, key: str, left_s: float | None = None) -> Admitted:
        """Return ``async with``'s form of ``enter`` and ``leave``; its value are the seconds that it waited."""
        return Admitted(self, key, left_s)

    def try_enter(self, key: str) -> bool:
        """Take a place if one is free now."""
        if self.running >= self._limits.max_concurrent:
            return False
        state = self._state(key)
        if state.full:
            return False
        self.running += 1
        state.running += 1
        return True

    async def enter(self, key: str, left_s: float | None = None) -> None:
        """Take a place, waiting for it if need be; whoever returns from here has to call ``leave``.

        ``left_s`` are the seconds until the request's deadline: it does not wait for longer.

        Raises ``ApiError`` (429 with `Retry-After`) when the queue is full or the wait was too long. A caller that is
        cancelled while it waits gives up its place in the queue.
        """
        if self.try_enter(key):
            return
        state = self._state(key)
        if self.waiting >= self._limits.queue:
            error = self._refusal(state, "and the queue is full")
            self._forget_if_idle(state)
            raise error
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        state.waiters[waiter] = None
        self.waiting += 1
        self._offer_turn(state)
        most_s = self._limits.queue_timeout_s if left_s is None else min(self._limits.queue_timeout_s, max(0.0, left_s))
        timer = loop.call_later(most_s, self._give_up, state, waiter)
        try:
            admitted = await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.leave(key)
            else:
                self._remove(state, waiter)
            raise
        finally:
            timer.cancel()
        if not admitted:
            raise self._refusal(state, f"and none became free in {most_s:g} s")

    def leave(self, key: str) -> None:
        """Give a place back; the next in turn gets it at once."""
        state = self._keys[key]
        now = asyncio.get_running_loop().time()
        state.running -= 1
        self.running -= 1
        state.pace.note(now)
        self._pace.note(now)
        self._offer_turn(state)
        while self._turns and self.running < self._limits.max_concurrent:
            self._admit_next(self._turns.popleft())
        self._forget_if_idle(state)

    def _admit_next(self, state: _Key) -> None:
        state.in_turn = False
        while state.waiters and not state.full:
            waiter, _ = state.waiters.popitem(last=False)
            self.waiting -= 1
            # A waiter that is done was cancelled, and its task has not run since.
            if not waiter.done():
                self.running += 1
                state.running += 1
                waiter.set_result(True)
                break
        self._offer_turn(state)
        self._forget_if_idle(state)

    def _offer_turn(self, state: _Key) -> None:
        if state.waiters and not state.full and not state.in_turn:
            state.in_turn = True
            self._turns.append(state)

    def _give_up(self, state: _Key, waiter: asyncio.Future[bool]) -> None:
        if not waiter.done():
            self._remove(state, waiter)
            waiter.set_result(False)

    def _remove(self, state: _Key, waiter: asyncio.Future[bool]) -> None:
        if waiter in state.waiters:
            del state.waiters[waiter]
            self.waiting -= 1
            self._forget_if_idle(state)

    def _state(self, key: str) -> _Key:
        state = self._keys.get(key)
        if state is None:
            state = self._keys[key] = _Key(key, self._limit_of.get(key))
        return state

    def _forget_if_idle(self, state: _Key) -> None:
        if not state.running and not state.waiters and not state.in_turn:
            self._keys.pop(state.name, None)

    def _refusal(self, state: _Key, ending: str) -> ApiError:
        if state.full:
            message = f"The key {state.name!r} has its {state.limit} requests running, {ending}."
            return too_busy(message, state.pace.until_free_s(len(state.waiters)))
        message = f"All {self._limits.max_concurrent} places for requests are taken, {ending}."
        return too_busy(message, self._pace.until_free_s(self.waiting))


class Admitted:
    """A place that is given back at the end of the block."""

    __slots__ = ("_admission", "_key", "_left_s")

    def __init__(self, admission: Admission, key: str, left_s: float | None) -> None:
        self._admission = admission
        self._key = key
        self._left_s = left_s

    async def __aenter__(self) -> float:
        if self._admission.try_enter(self._key):
            return 0.0
        clock = asyncio.get_running_loop().time
        begun = clock()
        await self._admission.enter(self._key, self._left_s)
        return clock() - begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._admission.leave(self._key)
