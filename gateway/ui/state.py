"""What goes on at this moment, for the dashboard: the places for requests, the deployments, the cache."""

from __future__ import annotations

from typing import Any

from gateway import __version__
from gateway.house import House
from gateway.report import fleet_report
from gateway.requests.now import places

_SHOWN = (
    "id",
    "model",
    "engine",
    "engine_label",
    "endpoint",
    "precision",
    "scheme",
    "state",
    "note",
    "slots",
    "inflight",
    "quality",
    "stable",
    "hardware",
    "measured",
    "predictions",
)


def state(house: House) -> dict[str, Any]:
    """Return the state; ``finished`` requests have ended since the start."""
    fleet = house.fleet
    foreign = {engine.name: engine.foreign_running + engine.foreign_waiting for engine in fleet.engines}
    return {
        **places(house),
        "version": __version__,
        "finished": house.recent.count,
        "measuring": house.measuring.state() if house.measuring is not None else None,
        "deployments": [
            {name: entry[name] for name in _SHOWN if name in entry} | {"foreign": foreign.get(entry["endpoint"], 0)}
            for entry in fleet_report(fleet)
        ],
    }
