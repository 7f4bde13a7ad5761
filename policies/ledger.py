"""The ledger: what we have sent to whom and what is still owed, in running sums.

A request is counted from the moment that it is chosen until its last byte. Every operation costs the same with one
request or a thousand. Beside the sums the ledger keeps the integral of each count over time, so that a request can say
at its end how many others were beside it in the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from policies.types import Deployment

_WROTE_STEP = 8
"""Tokens between two updates of the sums from ``Lease.wrote``, which is called for every chunk."""
_STILL_OWED = 8.0
"""Tokens that a request is taken to owe when it writes on past what was expected."""


class Work(NamedTuple):
    """Requests of ours on one deployment: the first five numbers of a ``LoadView``, in its order.

    ``LoadView(health, *ledger.view(deployment_id), …)``.
    """

    inflight: int = 0
    prefilling: int = 0
    owed_prefill_tokens: float = 0.0
    owed_decode_tokens: float = 0.0
    context_tokens: float = 0.0


_NOTHING = Work()


class _Counts:
    """How many requests decode and prefill in one place, and the integrals of both over time (request-seconds)."""

    __slots__ = ("at", "decoded_s", "decoding", "prefilled_s", "prefilling")

    def __init__(self, now: float) -> None:
        self.decoding = 0
        self.prefilling = 0
        self.decoded_s = 0.0
        self.prefilled_s = 0.0
        self.at = now

    def advance(self, now: float) -> None:
        passed = now - self.at
        if passed > 0.0:
            self.decoded_s += self.decoding * passed
            self.prefilled_s += self.prefilling * passed
            self.at = now


class _Account(_Counts):
    """One deployment: its sums, and the areas (sets of devices) that it works in.

    ``decoding`` and ``prefilling`` count what the engine works on; requests that wait for a slot are in neither.
    ``home`` is its own area, ``beside`` all areas with a device in common, its own among them. ``busy`` is the ledger's
    set of deployments that have something in flight.
    """

    __slots__ = (
        "beside",
        "busy",
        "context",
        "first_tokens",
        "home",
        "id",
        "inflight",
        "owed_decode",
        "owed_prefill",
        "slots",
    )

    def __init__(self, id_: str, busy: set[str], now: float) -> None:
        super().__init__(now)
        self.id = id_
        self.busy = busy
        self.inflight = 0
        self.first_tokens = 0
        self.owed_prefill = 0.0
        self.owed_decode = 0.0
        self.context = 0.0
        self.slots: int | None = None
        self.home = _Counts(now)
        self.beside: tuple[_Counts, ...] = (self.home,)

    def change(self, now: float, inflight: int, first_tokens: int) -> None:
        """Change the counts by so many requests, and so many of them past their first token."""
        home = self.home
        self.advance(now)
        home.advance(now)
        self.inflight += inflight
        self.first_tokens += first_tokens
        decoding = self.first_tokens
        prefilling = self.inflight - decoding
        if self.slots is not None:
            prefilling = max(0, min(prefilling, self.slots - decoding))
        home.decoding += decoding - self.decoding
        home.prefilling += prefilling - self.prefilling
        self.decoding = decoding
        self.prefilling = prefilling

    def move(self, now: float, home: _Counts, beside: tuple[_Counts, ...], slots: int | None) -> None:
        """Place the deployment on other hardware, with what it has in flight."""
        self.advance(now)
        self.home.advance(now)
        self.home.decoding -= self.decoding
        self.home.prefilling -= self.prefilling
        home.advance(now)
        home.decoding += self.decoding
        home.prefilling += self.prefilling
        self.home, self.beside, self.slots = home, beside, slots
        self.change(now, 0, 0)

    def integrals(self, now: float) -> tuple[float, float, float, float]:
        """Return request-seconds so far: decoding and prefilling here, decoding and prefilling in all areas beside."""
        self.advance(now)
        decoded = prefilled = 0.0
        for area in self.beside:
            area.advance(now)
            decoded += area.decoded_s
            prefilled += area.prefilled_s
        return self.decoded_s, self.prefilled_s, decoded, prefilled


class Lease:
    """One request on one deployment, from the moment that it is chosen. Whoever opened it closes it, in any case."""

    __slots__ = (
        "_account",
        "_closed",
        "_context",
        "_first_token_at",
        "_left_decode",
        "_left_prefill",
        "_neighbours",
        "_next_update",
        "_opened_at",
        "_prefill_tokens",
        "_seen_at_first_token",
        "_seen_at_opening",
        "_written",
    )

    def __init__(
        self, account: _Account, prefill_tokens: float, decode_tokens: float, context_tokens: float, now: float
    ) -> None:
        self._account = account
        self._prefill_tokens = self._left_prefill = prefill_tokens
        self._left_decode = decode_tokens
        self._context = context_tokens
        self._written = 0
        self._next_update = _WROTE_STEP
        self._opened_at = now
        self._first_token_at: float | None = None
        self._closed = False
        self._neighbours: dict[str, float] = {}
        account.owed_prefill += prefill_tokens
        account.owed_decode += decode_tokens
        account.context += context_tokens
        account.busy.add(account.id)
        account.change(now, 1, 0)
        self._seen_at_opening = account.integrals(now)
        self._seen_at_first_token = self._seen_at_opening

    def read(self, prefill_done: float) -> None:
        """The engine says that it has read so many of the prompt tokens that this lease was opened with."""
        left = max(0.0, self._prefill_tokens - prefill_done)
        if left < self._left_prefill and not self._closed:
            self._account.owed_prefill -= self._left_prefill - left
            self._left_prefill = left

    def first_token(self, now: float) -> None:
        """The prompt is read: from here on the request decodes. Only the first call counts."""
        if self._first_token_at is not None or self._closed:
            return
        self._first_token_at = now
        account = self._account
        account.owed_prefill -= self._left_prefill
        self._left_prefill = 0.0
        account.change(now, 0, 1)
        self._seen_at_first_token = account.integrals(now)

    def wrote(self, tokens_so_far: int) -> None:
        """The answer has so many tokens now. Cheap enough to be called for every chunk."""
        if tokens_so_far < self._next_update or self._closed:
            return
        written = tokens_so_far - self._written
        self._written = tokens_so_far
        self._next_update = tokens_so_far + _WROTE_STEP
        paid = max(0.0, min(float(written), self._left_decode - _STILL_OWED))
        self._left_decode -= paid
        self._context += written
        self._account.owed_decode -= paid
        self._account.context += written

    def close(self, now: float) -> Mapping[str, float]:
        """Take the request off the books and return who was beside it, as ``Observation.neighbours`` wants it.

        Idempotent: later calls change nothing and return the same.
        """
        if self._closed:
            return self._neighbours
        self._closed = True
        account = self._account
        seen = account.integrals(now)
        account.owed_prefill -= self._left_prefill
        account.owed_decode -= self._left_decode
        account.context -= self._context
        account.change(now, -1, 0 if self._first_token_at is None else -1)
        if account.inflight == 0:
            account.owed_prefill = account.owed_decode = account.context = 0.0
            account.busy.discard(account.id)
        turned_at = now if self._first_token_at is None else self._first_token_at
        turn = seen if self._first_token_at is None else self._seen_at_first_token
        prefill = _Beside.between(self._seen_at_opening, turn, turned_at - self._opened_at, own_prefilling=True)
        decode = _Beside.between(turn, seen, now - turned_at, own_prefilling=False)
        self._neighbours = _means(prefill, decode)
        return self._neighbours


class _Beside(NamedTuple):
    """Request-seconds of others during one phase of a request that took ``duration_s``."""

    duration_s: float
    same_decoding: float
    same_prefilling: float
    other_decoding: float
    other_prefilling: float

    @classmethod
    def between(
        cls,
        start: tuple[float, float, float, float],
        end: tuple[float, float, float, float],
        duration_s: float,
        *,
        own_prefilling: bool,
    ) -> _Beside:
        """Subtract two readings of the integrals, and the request's own part from its deployment's."""
        decoded, prefilled, area_decoded, area_prefilled = (
            after - before for before, after in zip(start, end, strict=True)
        )
        return cls(
            duration_s,
            max(0.0, decoded - (0.0 if own_prefilling else duration_s)),
            max(0.0, prefilled - (duration_s if own_prefilling else 0.0)),
            max(0.0, area_decoded - decoded),
            max(0.0, area_prefilled - prefilled),
        )


def _means(prefill: _Beside, decode: _Beside) -> dict[str, float]:
    """Return the mean numbers of neighbours over the whole life and over each phase that took time."""
    total_s = prefill.duration_s + decode.duration_s
    if total_s <= 0.0:
        return {}
    names = _Beside._fields[1:]
    means = {name: (getattr(prefill, name) + getattr(decode, name)) / total_s for name in names}
    for phase, seconds in (("prefill", prefill), ("decode", decode)):
        if seconds.duration_s > 0.0:
            means.update({f"{phase}_{name}": getattr(seconds, name) / seconds.duration_s for name in names})
    return means


class Ledger:
    """All leases that are open, as sums per deployment and per hardware.

    Times are seconds on the caller's monotonic clock. Not safe between threads.
    """

    def __init__(self) -> None:
        self.busy: set[str] = set()
        """Deployments that have something in flight; for reading only."""
        self._accounts: dict[str, _Account] = {}
        self._areas: dict[frozenset[str], _Counts] = {}

    def place(self, deployments: Iterable[Deployment], now: float) -> None:
        """Tell which deployments there are, where they run and their slots. Call it when the fleet changes.

        Accounts of deployments that are gone are dropped once nothing is in flight there.
        """
        placed = {deployment.id: deployment for deployment in deployments}
        used = {deployment.hardware.devices for deployment in placed.values()} - {frozenset()}
        self._areas = {devices: self._areas.get(devices) or _Counts(now) for devices in sorted(used, key=sorted)}
        for deployment in placed.values():
            devices = deployment.hardware.devices
            account = self._account(deployment.id, now)
            home = self._areas[devices] if devices else _Counts(now)
            shared = tuple(area for where, area in self._areas.items() if not devices.isdisjoint(where))
            account.move(now, home, shared or (home,), deployment.slots)
        for gone in [i for i, account in self._accounts.items() if i not in placed and account.inflight == 0]:
            del self._accounts[gone]

    def open(
        self, deployment_id: str, *, prefill_tokens: float, decode_tokens: float, context_tokens: float, now: float
    ) -> Lease:
        """Count a request at once, before anything is sent.

        ``prefill_tokens`` are the prompt tokens that the engine probably has to read, ``decode_tokens`` those that it
        will probably write, ``context_tokens`` the whole prompt.
        """
        account = self._account(deployment_id, now)
        return Lease(account, float(prefill_tokens), float(decode_tokens), float(context_tokens), now)

    def _account(self, deployment_id: str, now: float) -> _Account:
        account = self._accounts.get(deployment_id)
        if account is None:
            account = self._accounts[deployment_id] = _Account(deployment_id, self.busy, now)
        return account

    def view(self, deployment_id: str) -> Work:
        """Return what is in flight and owed on a deployment."""
        account = self._accounts.get(deployment_id)
        if account is None or account.inflight == 0:
            return _NOTHING
        prefill, decode, context = account.owed_prefill, account.owed_decode, account.context
        return Work(
            account.inflight,
            account.inflight - account.first_tokens,
            prefill if prefill > 0.0 else 0.0,
            decode if decode > 0.0 else 0.0,
            context if context > 0.0 else 0.0,
        )

    @property
    def inflight(self) -> int:
        """Requests in flight on all deployments together."""
        return sum(account.inflight for account in self._accounts.values())
