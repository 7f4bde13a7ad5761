"""A lease: one request on one deployment, on the books from the moment that it is chosen until its last byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from policies.account import Account

_WROTE_STEP = 8
"""Tokens between two updates of the sums from ``Lease.wrote``, which is called for every chunk."""
_STILL_OWED = 8.0
"""Tokens that a request is taken to owe when it writes on past what was expected."""


class Lease:
    """One request on one deployment, from the moment that it is chosen. Whoever opened it closes it, in any case."""

    __slots__ = (
        "_account",
        "_closed",
        "_closed_at",
        "_context",
        "_first_token_at",
        "_left_decode",
        "_left_prefill",
        "_next_update",
        "_opened_at",
        "_prefill_tokens",
        "_seen_at_close",
        "_seen_at_first_token",
        "_seen_at_opening",
        "_shared_at_opening",
        "_written",
    )

    def __init__(
        self, account: Account, prefill_tokens: float, decode_tokens: float, context_tokens: float, now: float
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
        self._closed_at = now
        account.owed_prefill += prefill_tokens
        account.owed_decode += decode_tokens
        account.context += context_tokens
        account.busy.add(account.id)
        account.change(now, 1, 0)
        self._seen_at_opening = account.integrals(now)
        self._shared_at_opening = account.home, account.home.inflight_s, account.home.decoded_s
        self._seen_at_first_token = self._seen_at_close = self._seen_at_opening

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

    def close(self, now: float) -> None:
        """Take the request off the books. Idempotent: later calls change nothing."""
        if self._closed:
            return
        self._closed = True
        self._closed_at = now
        account = self._account
        self._seen_at_close = account.integrals(now)
        account.owed_prefill -= self._left_prefill
        account.owed_decode -= self._left_decode
        account.context -= self._context
        account.change(now, -1, 0 if self._first_token_at is None else -1)
        if account.inflight == 0:
            account.owed_prefill = account.owed_decode = account.context = 0.0
            account.busy.discard(account.id)
        self._note_company(now, 0.0 if self._first_token_at is None else now - self._first_token_at)

    @property
    def neighbours(self) -> Mapping[str, float]:
        """Who was beside it, as ``Observation.neighbours`` wants it; nobody is known before it is closed."""
        if not self._closed:
            return {}
        opened, closed = self._seen_at_opening, self._seen_at_close
        turned_at, turn = self._first_token_at, self._seen_at_first_token
        if turned_at is None:
            turned_at, turn = self._closed_at, closed
        prefill = _Beside.between(opened, turn, turned_at - self._opened_at, own_prefilling=True)
        decode = _Beside.between(turn, closed, self._closed_at - turned_at, own_prefilling=False)
        return _means(prefill, decode)

    def _note_company(self, now: float, decoded_s: float) -> None:
        """Tell the hardware how much company this request had; one that moved meanwhile says nothing."""
        area, inflight_s, area_decoded_s = self._shared_at_opening
        taken_s = now - self._opened_at
        if area is not self._account.home or taken_s <= 0.0:
            return
        decoding = max(0.0, (area.decoded_s - area_decoded_s - decoded_s) / taken_s)
        others = max(0.0, (area.inflight_s - inflight_s) / taken_s - 1.0)
        area.note(decoding, max(0.0, others - decoding), now)


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
