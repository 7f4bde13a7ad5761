"""One client request as it goes through: what was asked, what was decided, what the response headers say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from cache.rules import USUAL, Terms
from gateway.client import Header
from gateway.errors import ApiError
from gateway.incoming import Incoming
from policies.types import Decision, Deployment, Estimate, Objective, RequestFacts
from policies.value import value

if TYPE_CHECKING:
    from gateway.attempt import Attempt
    from gateway.experiments.assigned import Assigned
    from gateway.telemetry.trace import Trace


@value
class Wishes:
    """What the client asked for beside the body: the ``x-paceline-*`` request headers and who it is."""

    caller: str = ""
    objective: Objective | None = None
    pinned: str = ""
    deadline_s: float | None = None
    """Seconds from the request's arrival within which the whole answer is wanted."""
    terms: Terms = USUAL
    """What the cache may do for it."""
    paced: bool = False
    """A kept answer is to come at the pace at which it was made."""
    outside: tuple[tuple[str, float], ...] = ()
    """Stages before it that the client names, with their seconds."""
    only: frozenset[str] = frozenset()
    """Ids of the deployments that an experiment leaves to it; empty: all."""


@value
class Kept:
    """An answer that another request has called for, now or before: its headers."""

    headers: tuple[Header, ...]


@dataclass(slots=True)
class Exchange:
    """A request between its first and its last byte. Times are ``loop.time()`` seconds.

    ``deployment`` and ``estimate`` are those of the attempt that runs now or ran last.
    """

    request_id: str
    arrived_at: float
    incoming: Incoming
    wishes: Wishes
    upstream_headers: tuple[tuple[str, str], ...] = ()
    facts: RequestFacts = field(default_factory=lambda: RequestFacts(""))
    decision: Decision | None = None
    deployment: Deployment | None = None
    estimate: Estimate | None = None
    reason: str = ""
    attempts: int = 0
    routed_at: float = 0.0
    first_token_at: float | None = None
    cache: bytes = b"off"
    """``hit``, ``miss``, ``coalesced``, ``bypass`` (the cache does not answer) or ``off``."""
    cache_key: bytes = b""
    """The beginning of the name under which its answer is kept."""
    kept: Kept | None = None
    """Whose answer it is, where this request called no engine."""
    ended: str = ""
    """``done``, ``cancelled``, ``failed`` or ``refused``, once it has ended."""
    ended_at: float = 0.0
    tries: list[Attempt] = field(default_factory=list)
    """All attempts, in their order; each has its own beginning, end and error."""
    error: ApiError | None = None
    """What the client was told instead of an answer, before any byte of one."""
    assigned: Assigned | None = None
    """Where an experiment has sent it."""
    waited_s: float = 0.0
    """Seconds until there was a place for it in this gateway."""
    lookup_s: float = 0.0
    """Seconds that the shared cache was asked for."""
    client_s: float = 0.0
    """Seconds during which its client did not read what had come."""
    read_s: float = 0.0
    """Seconds until all of it had come."""
    read_at: float = 0.0
    """When all of it had come, on ``time.monotonic``, which is finer than the loop's clock."""
    own_s: float = 0.0
    """Seconds of this gateway's own until it was first sent to an engine: reading, cache, routing, no waiting."""
    trace: Trace | None = None
    """Its place in a trace, where traces are made."""
    leader: Trace | None = None
    """The place of the request whose call it shares, where that is another one's."""
    said: bytes = b""
    """The beginning of what the client was sent, where prompts and answers are recorded."""

    def left_s(self) -> float | None:
        """Seconds until the client's deadline, less than 0 when it has passed; ``None`` without one."""
        deadline_s = self.wishes.deadline_s
        return None if deadline_s is None else self.arrived_at + deadline_s - asyncio.get_running_loop().time()

    def has_time_for(self, estimate: Estimate | None) -> bool:
        """Return whether an attempt that begins now may end in time."""
        left_s = self.left_s()
        return left_s is None or left_s > (0.0 if estimate is None else estimate.total_s)

    def headers(self) -> list[Header]:
        """The ``x-paceline-*`` headers as far as they are known now."""
        now = asyncio.get_running_loop().time()
        lines: list[Header] = [(b"x-request-id", self.request_id.encode())]
        deployment = self.deployment
        if deployment is not None:
            lines += [
                *who(deployment.id, deployment.engine, deployment.precision),
                (b"x-paceline-reason", header_text(self.reason)),
                (b"x-paceline-attempts", b"%d" % self.attempts),
            ]
            if self.estimate is not None:
                lines += predicted(self.estimate)
        elif self.kept is not None:
            lines += self.kept.headers
        if self.assigned is not None:
            lines.append((b"x-paceline-experiment", self.assigned.shown))
        lines.append((b"x-paceline-cache", self.cache))
        if self.cache_key:
            lines.append((b"x-paceline-cache-key", self.cache_key))
        lines.append((b"server-timing", self._server_timing(now)))
        return lines

    def _server_timing(self, now: float) -> bytes:
        """The stages that have passed, in ms: ``route`` (ours), ``ttft`` and ``upstream`` (the engine's until now)."""
        if not self.routed_at:
            return b"route;dur=%.2f" % ((now - self.arrived_at) * 1000)
        line = b"route;dur=%.2f" % ((self.routed_at - self.arrived_at) * 1000)
        if self.first_token_at is not None:
            line += b", ttft;dur=%.1f" % ((self.first_token_at - self.routed_at) * 1000)
        return line + b", upstream;dur=%.1f" % ((now - self.routed_at) * 1000)


class Witness(Protocol):
    """One who is told of each request once, at its end: a log, a trace, an experiment."""

    def ended(self, exchange: Exchange) -> None:
        """A request has ended, whatever became of it. Quick, and never waits."""


@lru_cache(1024)
def who(id_: str, engine: str, precision: str) -> tuple[Header, ...]:
    """Return the headers that name a deployment."""
    return (
        (b"x-paceline-deployment", header_text(id_)),
        (b"x-paceline-engine", header_text(engine)),
        (b"x-paceline-precision", precision.encode()),
    )


def predicted(estimate: Estimate) -> tuple[Header, Header]:
    """Return the headers that tell a prediction, in milliseconds."""
    return (
        (b"x-paceline-predicted-ttft-ms", b"%.0f" % (estimate.ttft_s * 1000)),
        (b"x-paceline-predicted-total-ms", b"%.0f" % (estimate.total_s * 1000)),
    )


def header_text(text: str, limit: int = 200) -> bytes:
    """Make any text safe in a response header: printable ASCII on one line, at most ``limit`` bytes."""
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text.encode()
    return "".join(c if " " <= c <= "~" else "?" for c in text[:limit]).encode()
