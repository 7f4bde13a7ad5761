"""Accounts of the ledger: what runs on one deployment, and on all that share its hardware, with integrals over time."""

from __future__ import annotations

from math import exp

from policies.types import NO_COMPANY, Usual

_USUAL_WEIGHT = 0.05
_USUAL_S = 60.0
"""A request counts by so much for what is usual, and by more when it is the first for a while."""
_HARDLY_ANY = 0.05


class Counts:
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


class Area(Counts):
    """One set of devices: beside what works there, the usual company of a request that comes to it.

    ``inflight`` counts those that wait for a slot as well; ``inflight_s`` is its integral over time. ``lingering``
    engines have nothing to do and keep a core busy all the same: for those beside them it is as if one decoded there.
    """

    __slots__ = ("_noted_at", "inflight", "inflight_s", "lingered_s", "lingering", "members", "usual")

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.inflight = 0
        self.inflight_s = 0.0
        self.lingering = 0
        self.lingered_s = 0.0
        self.members: tuple[str, ...] = ()
        self.usual = NO_COMPANY
        self._noted_at = now

    def advance(self, now: float) -> None:
        passed = now - self.at
        if passed > 0.0:
            self.inflight_s += self.inflight * passed
            self.lingered_s += self.lingering * passed
        super().advance(now)

    def note(self, decoding: float, waiting: float, now: float) -> None:
        """A request is over that had so many others beside it in the mean, decoding or not yet."""
        weight = max(_USUAL_WEIGHT, 1.0 - exp((self._noted_at - now) / _USUAL_S))
        self._noted_at = now
        before = self.usual
        usual = Usual(
            before.decoding + weight * (decoding - before.decoding),
            before.prefilling + weight * (waiting - before.prefilling),
        )
        self.usual = usual if usual.decoding + usual.prefilling > _HARDLY_ANY else NO_COMPANY


class Account(Counts):
    """One deployment: its sums, and the areas (sets of devices) that it works in.

    ``decoding`` and ``prefilling`` count what the engine works on; requests that wait for a slot are in neither.
    ``home`` is its own area, ``beside`` all areas with a device in common, its own among them. ``busy`` is the ledger's
    set of deployments that have something in flight. It lingers only while it has nothing in flight.
    """

    __slots__ = (
        "beside",
        "busy",
        "context",
        "first_tokens",
        "home",
        "id",
        "inflight",
        "lingers",
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
        self.lingers = False
        self.home = Area(now)
        self.beside: tuple[Area, ...] = (self.home,)

    def change(self, now: float, inflight: int, first_tokens: int) -> None:
        """Change the counts by so many requests, and so many of them past their first token."""
        home = self.home
        self.advance(now)
        home.advance(now)
        self.inflight += inflight
        self.first_tokens += first_tokens
        home.inflight += inflight
        decoding = self.first_tokens
        prefilling = self.inflight - decoding
        if self.slots is not None:
            prefilling = max(0, min(prefilling, self.slots - decoding))
        home.decoding += decoding - self.decoding
        home.prefilling += prefilling - self.prefilling
        self.decoding = decoding
        self.prefilling = prefilling

    def linger(self, now: float, *, lingers: bool) -> None:
        """Begin or end to keep a core busy for nothing."""
        if lingers != self.lingers:
            self.lingers = lingers
            self.home.advance(now)
            self.home.lingering += 1 if lingers else -1

    def move(self, now: float, home: Area, beside: tuple[Area, ...], slots: int | None) -> None:
        """Place the deployment on other hardware, with what it has in flight."""
        self.advance(now)
        for area, sign in ((self.home, -1), (home, 1)):
            area.advance(now)
            area.decoding += sign * self.decoding
            area.prefilling += sign * self.prefilling
            area.inflight += sign * self.inflight
            area.lingering += sign * self.lingers
        self.home, self.beside, self.slots = home, beside, slots
        self.change(now, 0, 0)

    def integrals(self, now: float) -> tuple[float, float, float, float]:
        """Return request-seconds so far: decoding and prefilling here, decoding and prefilling in all areas beside."""
        self.advance(now)
        decoded = prefilled = 0.0
        for area in self.beside:
            area.advance(now)
            decoded += area.decoded_s + area.lingered_s
            prefilled += area.prefilled_s
        return self.decoded_s, self.prefilled_s, decoded, prefilled
