"""Hardware taken aside and run on its own: for the measurements at the start, and for the oracle's look ahead."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from math import inf

from benchmarks.routing.engine import Engine, Hardware
from benchmarks.routing.request import Request


def aside(place: Hardware) -> Hardware:
    """Return a copy of hardware with all that runs and waits on it. Caches are shared: looking changes nothing."""
    twin = copy.copy(place)
    twin.engines = []
    for engine in place.engines:
        other = copy.copy(engine)
        other.queue = deque(copy.copy(request) for request in engine.queue)
        other.reading = deque(copy.copy(request) for request in engine.reading)
        other.writing = [(end, number, copy.copy(request)) for end, number, request in engine.writing]
        other.remembers = False
        twin.engines.append(other)
    return twin


def engine_in(place: Hardware, engine: Engine) -> Engine:
    """Return the copy of an engine in a copy of its hardware."""
    return next(twin for twin in place.engines if twin.index == engine.index)


def _step(place: Hardware, now: float) -> tuple[float, Sequence[Request]]:
    """Let hardware work until something changes. Returns when that is, ``inf`` for never, and whose answer is whole."""
    place.admit(now)
    now = place.settle()
    if now == inf:
        return inf, ()
    place.advance(now)
    first, done = place.ended(now)
    for request in first:
        request.first_token_at = now
    for request in done:
        request.done_at = now
    return now, done


def run_down(place: Hardware, now: float) -> dict[int, float]:
    """Let everything run to its end, with nothing new coming. Returns when each request's answer was whole."""
    ends: dict[int, float] = {}
    while True:
        now, done = _step(place, now)
        if now == inf:
            return ends
        ends.update((request.number, now) for request in done)


def run_beside(
    place: Hardware, request: Request, engine: Engine, neighbour: Request | None = None, where: Engine | None = None
) -> Request:
    """Run a request on idle hardware until its answer is whole, and return it.

    With a ``neighbour``, that one is past its first token (or in the middle of its prompt, when it is to write a single
    token) before the request comes, and is sent again to its engine ``where`` whenever it is done.
    """
    now = place.at
    if neighbour is not None and where is not None:
        place.take(where, copy.copy(neighbour), now)
        place.admit(now)
        now = place.settle()
        if neighbour.output_tokens == 1:
            now = place.at + 0.5 * (now - place.at)
            place.advance(now)
        else:
            place.advance(now)
            place.ended(now)
    place.take(engine, request, now)
    request.began_at = now
    while not request.done_at:
        now, done = _step(place, now)
        for each in done:
            if neighbour is not None and where is not None and each is not request:
                place.take(where, copy.copy(neighbour), now)
    return request


def run_together(place: Hardware, requests: Sequence[Request], engine: Engine) -> Sequence[Request]:
    """Send equal requests to one idle engine at once, and return them answered."""
    now = place.at
    for request in requests:
        place.take(engine, request, now)
        request.began_at = now
    left = len(requests)
    while left:
        now, done = _step(place, now)
        left -= len(done)
    return requests
