"""Predictions: how long a request takes on a deployment, from what is measured, what is learned and what runs there.

queue    slots engines: what the requests ahead owe, until a slot is free; engines that batch freely: none
load     what a cold or loading model still takes
prefill  curve(uncached tokens) × corrections, what they cost for being behind cached ones, a step of the batch that it
         joins, and what neighbours cost it
decode   (output − 1) × TPOT(context) × corrections, and what neighbours cost it
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from policies.contention import NOBODY, Beside, Contention
from policies.interval import Coverage
from policies.machine import Machine
from policies.profile import Profile
from policies.types import (
    NO_COMPANY,
    BatchSample,
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
    Usual,
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
_LOADING = Health.LOADING
_EMBEDDINGS = Operation.EMBEDDINGS


class Predictor:
    """All profiles by fingerprint. Reading it is free of effects; ``observe`` and ``measured`` teach it.

    Bounded: beyond 1,024 fingerprints the one that was taught longest ago is dropped.
    """

    def __init__(self) -> None:
        self._profiles: OrderedDict[str, Profile] = OrderedDict()
        self._machines: WeakValueDictionary[frozenset[str], Machine] = WeakValueDictionary()
        """By devices, for as long as there are profiles of deployments that run there."""

    def measured(
        self,
        fingerprint: str,
        samples: Iterable[SpeedSample],
        pairs: Iterable[PairSample] = (),
        hardware: Hardware | None = None,
        batches: Iterable[BatchSample] = (),
    ) -> None:
        """Take a measurement; corrections of an earlier one of the same fingerprint are forgotten.

        Without ``pairs`` and ``batches`` the contention that is known already stays, and with the same samples the
        speed and its intervals; at first, ``hardware`` chooses where contention begins. Raises ``ValueError`` when no
        sample has a prefill time.
        """
        pairs, batches = tuple(pairs), tuple(batches)
        hardware = hardware or Hardware("local")
        machine = Machine()
        if hardware.devices:
            machine = self._machines.setdefault(hardware.devices, machine)
        profile = Profile.measured(samples, pairs, hardware, batches, machine)
        known = self._profiles.get(fingerprint)
        if known is not None and not pairs and not batches:
            profile.contention = known.contention
        if known is not None and known.speed.samples == profile.speed.samples:
            known.contention = profile.contention
            profile = known
        self._keep(fingerprint, profile)

    def knows(self, fingerprint: str) -> bool:
        """Return whether deployments with this fingerprint can be predicted."""
        return fingerprint in self._profiles

    def profile(self, fingerprint: str) -> Profile | None:
        """Return what is known of a fingerprint."""
        return self._profiles.get(fingerprint)

    def coverage(self, fingerprint: str) -> Coverage:
        """Return how many of the last 200 predictions for a fingerprint held what they promised."""
        profile = self._profiles.get(fingerprint)
        return Coverage(0, 0) if profile is None else profile.intervals.coverage

    def drifted(self, fingerprint: str) -> str | None:
        """Say why a fingerprint should be measured again: outcomes left its interval persistently. ``None`` if not."""
        profile = self._profiles.get(fingerprint)
        return None if profile is None else profile.drifted

    def observe(self, observation: Observation, now: float) -> None:
        """Learn from a finished request. Nothing happens for a fingerprint that has no measurement."""
        profile = self._profiles.get(observation.fingerprint)
        if profile is not None:
            self._profiles.move_to_end(observation.fingerprint)
            profile.observe(observation, now)
            for other in self._profiles.values():
                if other.speed.machine is profile.speed.machine:
                    other.speed.renew()

    def work(self, deployment: Deployment, load: LoadView, now: float, context: int = 0) -> Beside:
        """Return what runs and waits on a deployment: ``NOBODY`` when it is idle.

        What it owes is taken at the engine's speed alone, with ``context`` tokens of context each.
        """
        return _work(self._profiles.get(deployment.fingerprint), load, now, context)

    def alone(
        self, deployment: Deployment, prompt_tokens: int, output_tokens: int, now: float, usual: Usual = NO_COMPANY
    ) -> Estimate | None:
        """Predict a request on an idle deployment, on hardware where nothing else runs; ``None`` if unmeasured.

        What most estimates of a decision are, so it does nothing that ``estimate`` needs for the others.
        """
        profile = self._profiles.get(deployment.fingerprint)
        if profile is None:
            return None
        speed = profile.speed
        decode_s = next_s = 0.0
        if output_tokens > 1:
            decode_s = (output_tokens - 1) * speed.tpot.at(prompt_tokens + output_tokens // 2, now)
        held = profile.opening_tokens
        uncached = prompt_tokens - held
        prefill_s = speed.prefill_s(uncached if uncached > 1 else 1, now, held)
        if usual is not NO_COMPANY:
            lost_s, next_s = _of_the_next(profile.contention, usual, deployment.slots, prefill_s, decode_s)
            decode_s += lost_s
        return Estimate(0.0, 0.0, prefill_s, decode_s, profile.usual_spread, 0.0, next_s, profile.company)

    def estimate(
        self,
        facts: RequestFacts,
        deployment: Deployment,
        load: LoadView,
        now: float,
        beside: Beside = NOBODY,
        own: Beside | None = None,
        usual: Usual = NO_COMPANY,
    ) -> Estimate | None:
        """Predict a request on a deployment beside what other deployments on its hardware do; ``None`` if unmeasured.

        ``own`` is what ``work`` says of this deployment and load, where the caller knows that already. Never falls when
        load is added: requests, tokens owed, foreign requests, or work ``beside``.
        """
        profile = self._profiles.get(deployment.fingerprint)
        if profile is None:
            return None
        speed = profile.speed
        prompt, output = facts.prompt_tokens, facts.expected_output
        held = load.cached_tokens
        if held < profile.opening_tokens:
            held = profile.opening_tokens
        uncached = prompt - held
        prefill_s = speed.prefill_s(uncached if uncached > 1 else 1, now, held)
        decode_s = 0.0
        if output > 1 and facts.operation is not _EMBEDDINGS:
            decode_s = (output - 1) * speed.tpot.at(prompt + output // 2, now)
        load_s = cost_s = 0.0
        if not load.resident or load.health is _LOADING:
            load_s = load.load_s or UNKNOWN_LOAD_S
            cost_s = 0.0 if load.health is _LOADING else load_s
        if own is None:
            own = _work(profile, load, now, prompt)
        company = profile.company
        if own is NOBODY and beside is NOBODY and usual is NO_COMPANY:
            return Estimate(0.0, load_s, prefill_s, decode_s, profile.usual_spread, cost_s, 0.0, company)
        decoding, prefilling, owed_decode_s, owed_prefill_s = own
        contention = profile.contention
        queue_s = joins_s = 0.0
        ahead = later = decoding + prefilling
        if decoding:
            joins_s = contention.joins_s(decoding, speed.tpot.at(prompt, now))
        if deployment.slots is not None and ahead > deployment.slots - 1.0:
            later = deployment.slots - 1.0
            batch = contention.batch_factor(later)
            queue_s = (owed_prefill_s + owed_decode_s) * batch / deployment.slots * (ahead - later) / max(ahead, 1.0)
            own = within(own, later)
        first_s, lost_s, others_s = contention.effects(own, later, beside, queue_s, prefill_s, decode_s, joins_s)
        elsewhere = beside.decoding + beside.prefilling
        next_s = 0.0
        if usual is not NO_COMPANY:
            after_s, next_s = _of_the_next(contention, usual, deployment.slots, prefill_s, decode_s)
            if after_s > 0.0:
                # Just after the load has changed, those who are there say more of who will come: at least as many.
                lost_s += after_s * max(1.0, (later + elsewhere) / (usual.decoding + usual.prefilling))
        ahead += elsewhere
        if ahead > company:
            company = ahead
        spread = profile.intervals.half_width(company)
        return Estimate(
            queue_s,
            load_s,
            prefill_s + first_s,
            decode_s + lost_s - first_s,
            spread,
            cost_s + others_s,
            next_s,
            company,
        )

    def later_s(self, facts: RequestFacts, deployment: Deployment, held_tokens: int, usual: Usual, now: float) -> float:
        """Return what a further request with the same beginning costs there, when that is in its cache, in the usual
        company: its total and what it costs those who come. Only for deployments that are measured."""
        profile = self._profiles[deployment.fingerprint]
        prompt, output = facts.prompt_tokens, facts.expected_output
        held = max(held_tokens, profile.opening_tokens)
        prefill_s = profile.speed.prefill_s(max(1, prompt - held), now, held)
        decode_s = profile.speed.decode_s(prompt, output, now)
        lost_s, delayed_s = _of_the_next(profile.contention, usual, deployment.slots, prefill_s, decode_s)
        return prefill_s + decode_s + lost_s + delayed_s

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
        """Take back what ``to_dict`` gave, on the machine of the measurement that is known. Raises ``KeyError``,
        ``TypeError`` or ``ValueError`` for anything else."""
        known = self._profiles.get(fingerprint)
        self._keep(fingerprint, Profile.from_dict(plain, known.speed.machine if known else None))


def _work(profile: Profile | None, load: LoadView, now: float, context: int) -> Beside:
    prefilling: float = load.prefilling
    decoding = load.inflight - prefilling
    read, write = load.owed_prefill_tokens, load.owed_decode_tokens
    if load.foreign_running or load.foreign_waiting:
        trust = 1.0 / (1.0 + max(0.0, load.age_s) / _GAUGE_FADES_S)
        foreign, waiting = load.foreign_running * trust, load.foreign_waiting * trust
        decoding += foreign
        prefilling += waiting
        read += FOREIGN_PREFILL_TOKENS * waiting
        write += FOREIGN_DECODE_TOKENS * (foreign + 2.0 * waiting)
    elif not load.inflight:
        return NOBODY
    if profile is None:
        return Beside(decoding, prefilling, write * _GUESSED_TPOT_S, read * _GUESSED_PREFILL_PER_TOKEN_S)
    speed = profile.speed
    read_s = read * speed.prefill.per_token_s(now) if read else 0.0
    return Beside(decoding, prefilling, write * speed.tpot.at(context, now), read_s)


def _of_the_next(
    contention: Contention, usual: Usual, slots: int | None, prefill_s: float, decode_s: float
) -> tuple[float, float]:
    """Return the seconds that a request loses to those who usually come while it runs, and those that they lose to it,
    should they all be sent where it is. Whoever finds no slot waits for a part of what this one takes."""
    lost, by_prefill, by_decode = contention.of_the_next(usual)
    lost_s = lost * decode_s
    delayed_s = by_prefill * prefill_s + by_decode * decode_s
    if slots is not None:
        over = usual.decoding + usual.prefilling - slots + 1.0
        if over > 0.0:
            delayed_s += over * (prefill_s + decode_s + lost_s) / slots
    return lost_s, delayed_s


def within(work: Beside, most: float) -> Beside:
    """Return work of which no more requests than ``most`` decode, and no more prefill: the others wait for a slot."""
    decoding, prefilling, decode_s, prefill_s = work
    if decoding <= most and prefilling <= most:
        return work
    return Beside(min(decoding, most), min(prefilling, most), decode_s, prefill_s)
