"""Where an experiment sends one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.exchange import header_text
from policies.value import value

if TYPE_CHECKING:
    from gateway.experiments.running import Running

MOST_CHECKED_BYTES = 64 << 10
"""Longest answer whose form is checked, as it is sent."""


@value
class Assigned:
    """An arm, drawn in ``stage`` for ``unit``; ``only`` are its deployments, none where routing may choose among all.

    ``is_checked``: the answer's form is looked at. ``is_copied``: the shadow arm gets it as well.
    """

    running: Running
    stage: int
    arm: int
    unit: str
    only: frozenset[str]
    is_checked: bool = False
    is_copied: bool = False

    @property
    def shown(self) -> bytes:
        """What the client is told: EXPERIMENT=ARM."""
        experiment = self.running.experiment
        return header_text(f"{experiment.name}={experiment.arms[self.arm].name}")

    @property
    def keeps(self) -> int:
        """How many bytes of the answer are to be kept for it."""
        return MOST_CHECKED_BYTES if self.is_checked else 0
