"""Experiments as bytes: JSON for what people and replicas read, MessagePack for sums."""

from __future__ import annotations

import msgspec

from gateway.experiments.running import Running, State
from gateway.experiments.stops import Stops
from gateway.experiments.store import Row
from policies.experiment import Experiment
from policies.experiment_evidence import Stage, Units


class _Shared(msgspec.Struct):
    experiment: Experiment
    state: State


class _Sums(msgspec.Struct):
    stages: list[Stage]
    units: Units
    uncounted: int


def to_row(running: Running) -> Row:
    """Return an experiment as it is kept."""
    evidence = running.evidence
    sums = _Sums(evidence.stages, evidence.units, evidence.uncounted)
    return (
        running.experiment.name,
        msgspec.json.encode(running.experiment),
        msgspec.json.encode(running.state),
        msgspec.msgpack.encode(sums),
    )


def from_row(row: Row, stops: Stops) -> Running:
    """Return a kept experiment. Raises ``msgspec.DecodeError`` for what another version has written."""
    _, experiment, state, sums = row
    decoded = msgspec.json.decode(experiment, type=Experiment)
    running = Running(decoded, stops, msgspec.json.decode(state, type=State))
    kept = msgspec.msgpack.decode(sums, type=_Sums)
    running.evidence.restore(kept.stages, kept.units, kept.uncounted)
    running.changed = False
    return running


def to_shared(running: Running) -> bytes:
    """Return what other gateways are told."""
    return msgspec.json.encode(_Shared(running.experiment, running.state))


def from_shared(data: bytes) -> tuple[Experiment, State]:
    """Return what another gateway has told. Raises ``msgspec.DecodeError``."""
    shared = msgspec.json.decode(data, type=_Shared)
    return shared.experiment, shared.state
