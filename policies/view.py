"""What a decision is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from policies.predict import Predictor
from policies.types import Deployment, LoadView, Usual
from policies.value import value


@value
class FleetView:
    """All that a decision is made from, at one moment.

    ``deployments`` are those of all models, since they slow each other; pass the same tuple until the fleet changes.
    ``loads`` are by deployment id; leave out those that are idle: it saves half of the decision. ``last_used`` gives a
    model's last deployment id, ``cost_to_others`` is what the objective latency counts of the delay that a choice adds
    to others. ``margins`` are how much faster 8 bits, and fewer, must be than 16 bits to serve who asked for no
    precision: 0.1 means by 10 %. ``usual`` is the company that requests usually have on a deployment's hardware
    (``Ledger.usual``), by id; none where it is left out.
    """

    deployments: tuple[Deployment, ...]
    loads: Mapping[str, LoadView]
    predictor: Predictor
    last_used: Mapping[str, str] = field(default_factory=dict)
    now: float = 0.0
    cost_to_others: float = 0.5
    margins: tuple[float, float] = (0.1, 0.2)
    usual: Mapping[str, Usual] = field(default_factory=dict)
