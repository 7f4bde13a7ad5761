"""How far the speed of a whole machine has moved away from what was measured on it."""

from __future__ import annotations

from policies.drift import Drift


class Machine:
    """What all deployments on the same devices have in common: what else runs there, how warm they are, and in a
    rented part of a machine the neighbours. ``prefill`` is bound by arithmetic, ``tpot`` by memory."""

    __slots__ = ("__weakref__", "prefill", "tpot")

    def __init__(self) -> None:
        self.prefill = Drift()
        self.tpot = Drift()
