"""An experiment between deployments of one model: its arms, and to which of them a request belongs.

Who belongs where depends on the experiment's name, the unit and the weights alone, so that every replica says the same
without asking another. A unit is a request, or whoever is to be kept to one arm: a key, a user, a header's value.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

RAMP = (0.05, 0.25, 0.5)
"""The usual shares of the new arm, one after the other."""
MOST_STAGES = 32
"""How often the weights of one experiment may change."""


class Sticky(StrEnum):
    """What is kept to one arm."""

    REQUEST = "request"
    """Nothing: each request is drawn anew."""
    KEY = "key"
    """The caller's key."""
    USER = "user"
    """OpenAI's field ``user``."""
    HEADER = "header"
    """The value of a header that the experiment names."""


class Kind(StrEnum):
    """What an experiment does with requests."""

    SPLIT = "split"
    """Each goes to one arm."""
    SHADOW = "shadow"
    """All go to the first arm, and copies of some to the second; nobody sees what that answers."""
    SWITCH = "switch"
    """The second arm takes over from the rest, at once or step by step."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Deployments that serve one side, by id or by any other selector. None at all: whoever routing would choose."""

    name: str
    deployments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Guardrails:
    """How much worse than the first an arm may be before it is stopped.

    ``errors`` and ``faults`` (of the answers' form) are differences of shares: 0.05 is five in a hundred more. ``ttft``
    is a factor on the geometric mean of the TTFT.
    """

    errors: float = 0.05
    ttft: float = 1.5
    faults: float = 0.1


@dataclass(frozen=True, slots=True)
class Experiment:
    """What was decided before it began; nothing of it changes. The first arm is what the others are compared with.

    ``ramp`` are the shares of the new arms, all together, one after the other; the next is taken by command, or after
    ``advance_after`` requests of the new arms without a complaint. ``metric`` is what the verdict is about,
    ``smallest`` the smallest difference that matters (0.1: 10 %; for shares and scores 0.1 itself), ``checked`` the
    share of answers whose form is looked at.
    """

    name: str
    model: str
    arms: tuple[Arm, ...]
    kind: Kind = Kind.SPLIT
    ramp: tuple[float, ...] = (0.5,)
    advance_after: int | None = None
    sticky: Sticky = Sticky.REQUEST
    header: str = ""
    metric: str = "total"
    smallest: float = 0.1
    checked: float = 0.1
    guardrails: Guardrails = field(default_factory=Guardrails)


def weights(arms: int, share: float, stopped: Sequence[int] = ()) -> tuple[float, ...]:
    """Return the weight of each arm when the new ones (all but the first) have ``share`` together.

    What a stopped arm had goes to the first.
    """
    each = share / (arms - 1)
    new = [0.0 if place in stopped else each for place in range(1, arms)]
    return (max(0.0, 1.0 - sum(new)), *new)


def assign(salt: str, unit: str, shares: Sequence[float]) -> int:
    """Return the place of the arm that a unit belongs to.

    Weighted rendezvous hashing (Schindelhauer and Schomaker, 2005): each arm draws a number for the unit, and the
    highest wins. When an arm's weight grows, units move to it only; when it shrinks, from it only. So a ramp takes
    nobody back.
    """
    best, place = -math.inf, 0
    for arm, share in enumerate(shares):
        if share > 0.0:
            digest = hashlib.blake2b(f"{salt}\0{arm}\0{unit}".encode(), digest_size=8).digest()
            draw = (int.from_bytes(digest, "big") + 0.5) / 2.0**64
            score = -share / math.log(draw) if draw < 1.0 else math.inf
            if score > best:
                best, place = score, arm
    return place


def is_drawn(salt: str, unit: str, share: float) -> bool:
    """Return whether a unit belongs to a random ``share`` of all, the same one each time."""
    return assign(salt, unit, (1.0 - share, share)) == 1
