"""Predictions: how long a request takes on a deployment, from what is measured, what is learned and what runs there.

queue    slots engines: what the requests ahead owe, until a slot is free; engines that batch freely: none
load     what a cold or loading model still takes
prefill  curve(uncached tokens) × drift, and what neighbours cost it
decode   (output − 1) × TPOT(context) × drift, and what neighbours cost it
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from policies.contention import NOBODY, Around, Beside
from policies.profile import Profile
from policies.types import (
    Deployment,
    Estimate,
    Hardware,
    Health,
    LoadView,
    Observation,
    Operation,
    PairSample,
    RequestFacts,
    SpeedSample,
)

UNKNOWN_LOAD_S = 10.0
"""What a cold or loading model is taken to need when nobody knows."""
FOREIGN_DECODE_TOKENS = 64.0
FOREIGN_PREFILL_TOKENS = 256.0
"""What a request that is not ours is taken to owe: half an answer when it runs, prompt and answer when it waits."""
_GAUGE_FADES_S = 10.0
"""Age at which an engine's own gauges count by half."""
_GUESSED_PREFILL_PER_TOKEN_S = 0.004
_GUESSED_TPOT_S = 0.03
"""Speeds of a neighbour that has not been measured: a small model on two cores."""
_MOST_PROFILES = 1024


class Predictor:
    """All profiles by fingerprint. Reading it is free of effects; ``observe`` and ``measured`` teach it.

    Bounded: beyond 1,024 fingerprints the one that was taught longest ago is dropped.
    """

    def __init__(self) -> None:
        self._profiles: OrderedDict[str, Profile] = OrderedDict()

    def measured(
        self,
        fingerprint: str,
        samples: Iterable[SpeedSample],
        pairs: Iterable[PairSample] = (),
        hardware: Hardware | None = None,
    ) -> None:
        """Take a measurement; corrections of an earlier one of the same fingerprint are forgotten.

        Without ``pairs`` the contention that is known already stays, and with the same samples the speed; at first,
        ``hardware`` chooses where contention begins. Raises ``ValueError`` when no sample has a prefill time.
        """
        pairs = tuple(pairs)
        profile = Profile.measured(samples, pairs, hardware or Hardware("local"))
        known = self._profiles.get(fingerprint)
        if known is not None and not pairs:
            profile.contention = known.contention
        if known is not None and known.speed.samples == profile.speed.samples:
            profile.speed = known.speed
        self._keep(fingerprint, profile)

    def knows(self, fingerprint: str) -> bool:
        """Return whether deployments with this fingerprint can be predicted."""
        return fingerprint in self._profiles

    def profile(self, fingerprint: str) -> Profile | None:
        """Return what is known of a fingerprint."""
        return self._profiles.get(fingerprint)

    def observe(self, observation: Observation, now: float) -> None:
        """Learn from a finished request. Nothing happens for a fingerprint that has no measurement."""
        profile = self._profiles.get(observation.fingerprint)
        if profile is not None:
            self._profiles.move_to_end(observation.fingerprint)
            profile.observe(observation, now)

    def work(self, deployment: Deployment, load: LoadView, now: float) -> Beside:
        """Return what a deployment's requests are to others on the same hardware. ``NOBODY`` when it is idle."""
        foreign, waiting = _foreign(load)
        if not load.inflight and not foreign and not waiting:
            return NOBODY
        decoding = load.inflight - load.prefilling + foreign
        prefilling = load.prefilling + waiting
        if deployment.slots is not None:
            decoding, prefilling = min(decoding, deployment.slots), min(prefilling, deployment.slots)
        prefill_s, decode_s = self._owed_s(self._profiles.get(deployment.fingerprint), load, foreign, waiting, 0, now)
        return Beside(decoding, prefilling, decode_s, prefill_s)

    def estimate(
        self, facts: RequestFacts, deployment: Deployment, load: LoadView, now: float, beside: Beside = NOBODY
    ) -> Estimate | None:
        """Predict a request on a deployment beside what other deployments on its hardware do; ``None`` if unmeasured.

        Never falls when load is added: requests, tokens owed, foreign requests, or work ``beside``.
        """
        profile = self._profiles.get(deployment.fingerprint)
        if profile is None:
            return None
        speed = profile.speed
        prompt = facts.prompt_tokens
        uncached = prompt - load.cached_tokens
        prefill_s = speed.prefill_s(uncached if uncached > 1 else 1, now)
        output = 0 if facts.operation is Operation.EMBEDDINGS else facts.expected_output
        decode_s = speed.decode_s(prompt, output, now)
        load_s = 0.0
        cost_s = 0.0
        if not load.resident or load.health is Health.LOADING:
            load_s = load.load_s or UNKNOWN_LOAD_S
            if load.health is not Health.LOADING:
                cost_s = load_s
        if not load.inflight and not load.foreign_running and not load.foreign_waiting and beside is NOBODY:
            return Estimate(0.0, load_s, prefill_s, decode_s, profile.spread_alone.half_width, cost_s)
        queue_s, around = self._around(profile, deployment, load, prompt, now, beside)
        first_s, lost_s, others_s = profile.contention.effects(around, queue_s, prefill_s, decode_s)
        spread = max(profile.spread_alone.half_width, profile.spread_beside.half_width)
        return Estimate(queue_s, load_s, prefill_s + first_s, decode_s + lost_s - first_s, spread, cost_s + others_s)

    def _around(
        self, profile: Profile, deployment: Deployment, load: LoadView, prompt: int, now: float, beside: Beside
    ) -> tuple[float, Around]:
        """Return the wait for a slot, in seconds of the engine's own work, and the neighbours once it is over."""
        foreign, waiting = _foreign(load)
        decoding = load.inflight - load.prefilling + foreign
        prefilling = load.prefilling + waiting
        ahead = decoding + prefilling
        owed_prefill_s, owed_decode_s = self._owed_s(profile, load, foreign, waiting, prompt, now)
        queue_s = 0.0
        slots = deployment.slots
        if slots is not None:
            most = slots - 1.0
            if ahead > most:
                batch = profile.contention.batch_factor(most)
                queue_s = (owed_prefill_s + owed_decode_s) * batch / slots * (ahead - most) / max(ahead, 1.0)
            decoding, prefilling, ahead = min(decoding, most), min(prefilling, most), min(ahead, most)
        return queue_s, Around(decoding, ahead, prefilling, owed_decode_s, owed_prefill_s, beside)

    def _owed_s(
        self, profile: Profile | None, load: LoadView, foreign: float, waiting: float, context: int, now: float
    ) -> tuple[float, float]:
        """Return the seconds of prefill and of decode that a deployment's requests owe, at its speed alone."""
        read = load.owed_prefill_tokens + FOREIGN_PREFILL_TOKENS * waiting
        write = load.owed_decode_tokens + FOREIGN_DECODE_TOKENS * (foreign + 2.0 * waiting)
        if profile is None:
            return read * _GUESSED_PREFILL_PER_TOKEN_S, write * _GUESSED_TPOT_S
        speed = profile.speed
        return read * speed.prefill_per_token_s * speed.prefill_drift.factor(now), write * speed.tpot_s(context, now)

    def _keep(self, fingerprint: str, profile: Profile) -> None:
        self._profiles[fingerprint] = profile
        self._profiles.move_to_end(fingerprint)
        while len(self._profiles) > _MOST_PROFILES:
            self._profiles.popitem(last=False)

    def to_dict(self, fingerprint: str) -> dict[str, Any] | None:
        """Return what is known of one fingerprint as plain values, for a store."""
        profile = self._profiles.get(fingerprint)
        return None if profile is None else profile.to_dict()

    def restore(self, fingerprint: str, plain: Mapping[str, Any]) -> None:
        """Take back what ``to_dict`` gave. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        self._keep(fingerprint, Profile.from_dict(plain))


def _foreign(load: LoadView) -> tuple[float, float]:
    """Requests that are not ours, running and waiting, the less the older the engine's word is."""
    if not load.foreign_running and not load.foreign_waiting:
        return 0.0, 0.0
    trust = 1.0 / (1.0 + max(0.0, load.age_s) / _GAUGE_FADES_S)
    return load.foreign_running * trust, load.foreign_waiting * trust
