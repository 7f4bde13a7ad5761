"""Which deployments on the same hardware worked beside a request, and which of that began after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from gateway.requests.note import Note
from policies.diagnosis.case import Neighbour
from policies.types import Deployment

if TYPE_CHECKING:
    from gateway.exchange import Exchange

MOST_REMEMBERED = 2000
"""Attempts that have ended."""
_LEAST = 0.05
"""Fewer others than this, in the mean, are nobody."""


class Stay(NamedTuple):
    """A request's time on a deployment, by the loop's clock; ``gone_at`` is its request's end. Infinite: not yet."""

    request_id: str
    deployment: Deployment
    chosen_at: float
    ended_at: float
    gone_at: float


class Stays:
    """The last stays, in the order of their requests' ends."""

    def __init__(self) -> None:
        self._ended: deque[Stay] = deque(maxlen=MOST_REMEMBERED)

    def ended(self, exchange: Exchange) -> None:
        """Remember those of a request that has ended."""
        for each in exchange.tries:
            gone_at = exchange.ended_at
            stay = Stay(
                exchange.request_id, each.candidate.deployment, each.chosen_at, each.ended_at or gone_at, gone_at
            )
            self._ended.append(stay)

    def all(self, running: Iterable[Exchange]) -> list[Stay]:
        """Return those of requests that run, and of ended ones the last, the newest first."""
        stays = [
            Stay(exchange.request_id, exchange.tries[-1].candidate.deployment, exchange.tries[-1].chosen_at, inf, inf)
            for exchange in running
            if exchange.tries and not exchange.tries[-1].ended_at
        ]
        return [*stays, *reversed(self._ended)]


def beside(note: Note, stays: Sequence[Stay]) -> tuple[Neighbour, ...]:
    """Return who was beside a request's last attempt, the one with the most others first; ``stays`` as ``Stays.all``
    has them."""
    if not note.tries:
        return ()
    own = note.tries[-1]
    begun, ended = own.chosen_at, own.ended_at or note.ended_at
    hardware, id_ = own.candidate.deployment.hardware, own.candidate.deployment.id
    if ended <= begun:
        return ()
    found: dict[str, list[float]] = {}
    for stay in stays:
        if stay.gone_at <= begun:
            break  # and so are all that come behind it
        both_s = min(ended, stay.ended_at) - max(begun, stay.chosen_at)
        if both_s <= 0.0 or stay.request_id == note.request_id:
            continue
        if stay.deployment.id == id_ or stay.deployment.hardware.shares(hardware):
            sums = found.setdefault(stay.deployment.id, [0.0, 0.0])
            sums[0] += both_s
            sums[1] += both_s if stay.chosen_at > begun else 0.0
    took_s = ended - begun
    neighbours = [
        Neighbour(name, round(all_s / took_s, 3), round(late_s / took_s, 3)) for name, (all_s, late_s) in found.items()
    ]
    return tuple(sorted((each for each in neighbours if each.others >= _LEAST), key=lambda each: -each.others))
