"""Whose kept answers a request may be given: those of the deployments that routing would let serve it now."""

from __future__ import annotations

import hashlib

import msgspec

from gateway.fleet import Fleet
from policies.roster import Option, roster
from policies.types import Capability, Deployment, Health, Operation, RequestFacts

_MOST = 256

Kind = tuple[str, str, Operation, frozenset[Capability], str, frozenset[str]]


class Acceptance:
    """Worked out once for each kind of request, until the fleet changes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[Kind, tuple[str, ...]] = {}
        fleet.on_change(self._known.clear)

    def fingerprints(self, kind: Kind) -> tuple[str, ...]:
        """Return the acceptable fingerprints, the best precision first; empty for an unknown model.

        ``kind`` is model, selector, operation, needs, pinned deployment and those that an experiment leaves. A
        precision that was asked for is kept to. Without one it is that of the best deployment that is up, or better;
        when none is up, of the best there is.
        """
        known = self._known.get(kind)
        if known is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[kind] = self._work_out(kind)
        return known

    def name(self, deployment: Deployment) -> str:
        """Return what a deployment's answers are kept under: its fingerprint, and the fields that are added to each
        request for its engine, since they are in no request's key."""
        adapter = self._fleet.engine_of(deployment).source.adapter
        options = adapter.endpoint.options if adapter is not None else None
        if not options:
            return deployment.fingerprint
        spelled = msgspec.json.encode(options, order="deterministic")
        return f"{deployment.fingerprint}-{hashlib.sha256(spelled).hexdigest()[:8]}"

    def _work_out(self, kind: Kind) -> tuple[str, ...]:
        model, selector, operation, needs, pinned, only = kind
        facts = RequestFacts(model, selector, operation, needs=needs, pinned=pinned, only=only)
        options = roster(self._fleet.deployments).plan(facts).options
        up = [option for option in options if self._fleet.health_of(option.deployment) is Health.UP]
        serving = min((option.grade for option in up or options), default=0)
        acceptable = sorted((option for option in options if option.grade <= serving), key=_best_first)
        return tuple(dict.fromkeys(self.name(option.deployment) for option in acceptable))


def _best_first(option: Option) -> tuple[int, int, str]:
    return option.grade, -option.deployment.precision.rank, option.id
