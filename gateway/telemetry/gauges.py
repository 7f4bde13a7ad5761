"""What is so at this moment: engines, breakers, what runs and what waits."""

from __future__ import annotations

from typing import Final

from cache.statistics import Statistics
from gateway import __version__
from gateway.admission import Admission
from gateway.experiments.stops import Stops
from gateway.fleet import Fleet
from gateway.telemetry.family import Family, Form, Point
from policies.breaker import State
from policies.types import Deployment, Health

_WHERE: Final = ("model", "deployment", "engine", "precision")
_STATES: Final = {State.CLOSED: 0.0, State.HALF_OPEN: 1.0, State.OPEN: 2.0}


def gauges(fleet: Fleet, admission: Admission, stops: Stops, statistics: Statistics | None) -> list[Family]:
    """Return the state of everything; ``stops`` are the experiments', ``statistics`` the cache's, if it is on."""
    deployments = [(_labels(each), each) for each in fleet.deployments]
    engines = [((each.name,), each) for each in fleet.engines]
    families = [
        _gauge("paceline.build.info", "Always 1; the version is its label.", ("version",), [((__version__,), 1.0)]),
        _gauge(
            "paceline.engine.up",
            "Whether an engine can take requests: 1 or 0.",
            ("endpoint",),
            [(key, float(engine.health is Health.UP)) for key, engine in engines],
        ),
        _gauge(
            "paceline.engine.foreign",
            "Requests in an engine that came past the gateway, by its own gauges.",
            ("endpoint",),
            [(key, float(engine.foreign_running + engine.foreign_waiting)) for key, engine in engines],
        ),
        _gauge(
            "paceline.deployment.up",
            "Whether a deployment can take requests: 1 or 0.",
            _WHERE,
            [(key, float(fleet.serves(each))) for key, each in deployments],
        ),
        _gauge(
            "paceline.inflight",
            "Requests that run on a deployment.",
            _WHERE,
            [(key, float(fleet.inflight_on(each))) for key, each in deployments],
        ),
        _gauge(
            "paceline.breaker.state",
            "A deployment's breaker: 0 closed, 1 half-open, 2 open.",
            _WHERE,
            [(key, _STATES[fleet.breaker_of(each)]) for key, each in deployments],
        ),
        _gauge("paceline.queue.depth", "Requests that wait for a place in the gateway.", (), [((), admission.waiting)]),
    ]
    stopped = [
        Point(key, float(count))
        for key, count in stops.table(sorted({each.model for each in fleet.deployments})).items()
    ]
    help_ = "Arms of experiments that a guardrail has stopped in this gateway."
    labels = ("model", "guardrail")
    families.append(Family("paceline.experiment.stops", Form.COUNTER, "{arm}", help_, labels, stopped))
    if statistics is not None:
        saved = [
            Point((model, kind), counts[f"saved_{kind}_tokens"])
            for model, counts in statistics.table().items()
            for kind in ("prompt", "output")
        ]
        help_ = "Tokens that no engine had to read or write again."
        families.append(Family("paceline.cache.saved_tokens", Form.COUNTER, "{token}", help_, ("model", "kind"), saved))
    return families


def _labels(deployment: Deployment) -> tuple[str, ...]:
    return deployment.model, deployment.id, deployment.engine, deployment.precision


def _gauge(name: str, help_: str, labels: tuple[str, ...], each: list[tuple[tuple[str, ...], float]]) -> Family:
    return Family(name, Form.GAUGE, "", help_, labels, [Point(key, value) for key, value in each])
