"""A fleet and what is asked of it: everything that is drawn by chance, before any policy has a say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.routing.engine import Engine, Hardware
from benchmarks.routing.laws import Sharing, SpeedLaw
from benchmarks.routing.request import Request
from policies.types import Deployment

DRIFT_STEP_S = 20.0


@dataclass(frozen=True, slots=True)
class Member:
    """One deployment of a fleet with its laws; members with the same hardware share it as ``sharing`` says."""

    deployment: Deployment
    law: SpeedLaw
    sharing: Sharing
    load_s: float = 3.0
    keep_loaded_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Outage:
    """An engine dies, with all that it was doing, and is back later."""

    engine: int
    at: float
    back_at: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulation, the same for each policy.

    ``requests`` are those that come by themselves, in order; their ``then`` come when they are done. ``speeds`` are the
    factors on each engine's speed in steps of 20 s: machines drift.
    """

    name: str
    members: tuple[Member, ...]
    requests: tuple[Request, ...]
    speeds: tuple[tuple[float, ...], ...]
    outages: tuple[Outage, ...] = ()


def build(members: Sequence[Member]) -> tuple[list[Engine], list[Hardware]]:
    """Make the engines of a fleet, idle, and the hardware that they run on."""
    engines: list[Engine] = []
    places: dict[frozenset[str], list[Engine]] = {}
    sharing: dict[frozenset[str], Sharing] = {}
    for index, member in enumerate(members):
        engine = Engine(member.deployment, member.law, index, load_s=member.load_s, keep_loaded_s=member.keep_loaded_s)
        engines.append(engine)
        devices = member.deployment.hardware.devices
        places.setdefault(devices, []).append(engine)
        sharing[devices] = member.sharing
    return engines, [Hardware(there, sharing[devices]) for devices, there in places.items()]
