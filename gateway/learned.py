"""What serving has taught so far: speeds, token ratios, answer lengths, prefixes; saved so that a restart keeps it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from adapters.base import Outcome
from gateway.incoming import PREFIX_BLOCK_BYTES
from measure.records import Run
from policies.bucket import Bucket
from policies.predict import Predictor
from policies.prefix import PrefixMemory
from policies.tokens import OutputLength, TokenRatio
from policies.turns import Turns
from policies.types import BatchSample, Deployment, Observation, Operation, PairSample, RequestFacts, SpeedSample

if TYPE_CHECKING:
    from gateway.attempt import Attempt

logger = logging.getLogger("paceline.learned")

LESSONS_PER_S = 32.0
"""Answers a second that each deployment teaches, beyond a burst of twice as many. Speeds do not change faster, and
under a load of thousands of short answers learning from each would cost more than it improves."""
_MOST_BLOCKS = 512
"""Models whose blocks' lengths are kept. Clients name models, so there is no other bound."""


class Learned:
    """The predictor and its helpers, as one thing to ask and to teach."""

    def __init__(self) -> None:
        self.predictor = Predictor()
        self.ratio = TokenRatio()
        self.output = OutputLength()
        self.prefixes = PrefixMemory()
        self.turns = Turns()
        self._samples: dict[str, tuple[SpeedSample, ...]] = {}
        self._pairs: dict[str, dict[tuple[str, str], PairSample]] = {}
        self._batches: dict[str, tuple[BatchSample, ...]] = {}
        self._changed: set[str] = set()
        self._taught_at: dict[str, float] = {}
        self._lessons: dict[str, Bucket] = {}
        self._blocks: dict[str, int] = {}

    def recall(
        self,
        deployment: Deployment,
        samples: Iterable[SpeedSample],
        pairs: Iterable[PairSample],
        learned: Mapping[str, Any] | None,
        batches: Iterable[BatchSample] = (),
    ) -> None:
        """Take what is on record for a fingerprint: the measurement, then what was learned on top of it.

        What was learned on top of another measurement, before a benchmark say, is of no use.
        """
        kept = tuple(samples)
        self._take(deployment, kept, pairs, batches)
        if learned is None:
            return
        try:
            self.predictor.restore(deployment.fingerprint, learned)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning(
                "%s: what was learned earlier cannot be read (%s); the measurement stands", deployment.id, error
            )
            return
        profile = self.predictor.profile(deployment.fingerprint)
        if profile is not None and profile.speed.samples != kept:
            self._take(deployment, kept, ())

    def measured(
        self, deployment: Deployment, samples: Iterable[SpeedSample], batches: Iterable[BatchSample] = ()
    ) -> None:
        """Take a new measurement. Nothing happens when it is the one that is known."""
        kept, batches = tuple(samples), tuple(batches)
        fingerprint = deployment.fingerprint
        if (kept, batches) != (self._samples.get(fingerprint), self._batches.get(fingerprint)):
            self._take(deployment, kept, (), batches)
            self._changed.add(fingerprint)

    def paired(self, deployment: Deployment, pairs: Iterable[PairSample], deployments: Iterable[Deployment]) -> None:
        """Take what was measured beside neighbours, and begin from it for all others on the same hardware.

        How requests in one engine slow each other is a matter of its kind. How another engine slows one, too, but as
        long as none of its kind was measured, those of other kinds say more than nothing.
        """
        pairs = tuple(pairs)
        for each in deployments:
            samples = self._samples.get(each.fingerprint)
            if not samples or not each.hardware.shares(deployment.hardware):
                continue
            fitting = pairs
            if each.engine != deployment.engine:
                known = self._pairs.get(each.fingerprint, {})
                fitting = tuple(p for p in pairs if p.neighbour == "other" and (p.neighbour, p.activity) not in known)
            if fitting:
                self._take(each, samples, fitting)
                self._changed.add(each.fingerprint)

    def _take(
        self,
        deployment: Deployment,
        samples: Iterable[SpeedSample],
        pairs: Iterable[PairSample],
        batches: Iterable[BatchSample] | None = None,
    ) -> None:
        """Take samples; pairs are added to those that are known, batches replace them where they are given."""
        fingerprint = deployment.fingerprint
        kept = self._samples[fingerprint] = tuple(samples)
        known = self._pairs.setdefault(fingerprint, {})
        known.update({(pair.neighbour, pair.activity): pair for pair in pairs})
        if batches is not None:
            self._batches[fingerprint] = tuple(batches)
        together = self._batches.get(fingerprint, ())
        try:
            self.predictor.measured(fingerprint, kept, known.values(), deployment.hardware, together)
        except ValueError as error:
            logger.warning("%s: its measurement cannot be used: %s", deployment.id, error)
            return
        self._taught_at[deployment.fingerprint] = asyncio.get_running_loop().time()

    def keep(self, deployments: Collection[Deployment]) -> None:
        """Forget what only those that run can use: what their caches hold, and measurements that nobody knows."""
        ids = {deployment.id for deployment in deployments}
        self.prefixes.keep(ids)
        self._lessons = {id_: lessons for id_, lessons in self._lessons.items() if id_ in ids}
        for gone in [each for each in self._samples if not self.predictor.knows(each)]:
            del self._samples[gone]
            del self._pairs[gone]
            self._batches.pop(gone, None)
            self._taught_at.pop(gone, None)

    def samples(self, fingerprint: str) -> tuple[SpeedSample, ...]:
        """Return the measurement that predictions started from."""
        return self._samples.get(fingerprint, ())

    def taught_at(self, fingerprint: str) -> float | None:
        """Return when the predictions of a fingerprint were last taught something; ``None`` when there are none."""
        return self._taught_at.get(fingerprint)

    def block_tokens(self, model: str) -> int:
        """Return how many tokens one block of a prompt's prefix probably has."""
        known = self._blocks.get(model)
        if known is None:
            if len(self._blocks) >= _MOST_BLOCKS:
                self._blocks.clear()
            one, _ = self.ratio.estimate(model, PREFIX_BLOCK_BYTES)
            two, _ = self.ratio.estimate(model, 2 * PREFIX_BLOCK_BYTES)
            known = self._blocks[model] = max(1, two - one)
        return known

    def holders(self, facts: RequestFacts, prompt_tokens: int) -> dict[str, int]:
        """Return how many leading tokens of a prompt of ``prompt_tokens`` deployments probably hold, of those that hold
        any."""
        block = self.block_tokens(facts.model)
        return self.prefixes.holders(facts.prefix, block, prompt_tokens, messages=facts.messages)

    def from_answer(self, attempt: Attempt) -> None:
        """Learn from an answer that came whole: always what the engine's cache holds now, the rest in measure."""
        outcome, deployment = attempt.outcome, attempt.candidate.deployment
        if outcome is None or not outcome.prompt_tokens:
            return
        teaches = self._has_lesson(deployment, attempt.ended_at)
        if attempt.exchange.facts.operation is not Operation.EMBEDDINGS:
            if teaches:
                self._learn_lengths(attempt, outcome)
            self._remember_prefix(attempt, outcome)
        if teaches:
            self._observe(_observation(attempt, outcome), attempt.ended_at)

    def _has_lesson(self, deployment: Deployment, now: float) -> bool:
        lessons = self._lessons.get(deployment.id)
        if lessons is None:
            lessons = self._lessons[deployment.id] = Bucket(per_s=LESSONS_PER_S, most=2 * LESSONS_PER_S)
        return lessons.take(now)

    def _learn_lengths(self, attempt: Attempt, outcome: Outcome) -> None:
        facts, incoming = attempt.exchange.facts, attempt.exchange.incoming
        prompt_tokens = outcome.prompt_tokens or 0
        if not incoming.images:
            self.ratio.learn(facts.model, incoming.text_bytes, prompt_tokens)
            self._blocks.pop(facts.model, None)
        if outcome.output_tokens:
            cut = outcome.finish_reason == "length"
            self.output.learn(facts.model, facts.scope, outcome.output_tokens, was_cut=cut)
        held = max(self.holders(facts, prompt_tokens).values(), default=0)
        self.turns.learn(facts.model, facts.scope, continues=2 * held > prompt_tokens)

    def _remember_prefix(self, attempt: Attempt, outcome: Outcome) -> None:
        facts, deployment = attempt.exchange.facts, attempt.candidate.deployment
        capacity = (deployment.context or 0) * (deployment.slots or 1) or None
        self.prefixes.remember(
            deployment.id,
            facts.prefix,
            self.block_tokens(facts.model),
            capacity,
            messages=facts.messages,
            prompt_tokens=outcome.prompt_tokens or 0,
            output_tokens=outcome.output_tokens or 0,
        )

    def from_probe(self, deployment: Deployment, run: Run, now: float) -> None:
        """Learn from a short request of our own that nothing else ran beside."""
        total_s = run.ttft_s + run.decode_s
        self._observe(
            Observation(
                deployment=deployment.id,
                fingerprint=deployment.fingerprint,
                prompt_tokens=run.prompt_tokens,
                output_tokens=run.output_tokens,
                ttft_s=run.ttft_s,
                total_s=total_s,
                cached_tokens=run.cached_tokens,
                prefill_s=run.engine_prefill_s,
                decode_s=run.engine_decode_s,
                queue_s=run.engine_queue_s,
                load_s=run.engine_load_s,
                new_prompt=True,
            ),
            now,
        )

    def _observe(self, observation: Observation, now: float) -> None:
        self.predictor.observe(observation, now)
        if observation.fingerprint in self._taught_at:
            self._taught_at[observation.fingerprint] = now
        self._changed.add(observation.fingerprint)

    def unsaved(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what has changed since the last call, by fingerprint."""
        changed, self._changed = self._changed, set()
        for fingerprint in changed:
            state = self.predictor.to_dict(fingerprint)
            if state is not None:
                yield fingerprint, state


def _observation(attempt: Attempt, outcome: Outcome) -> Observation:
    deployment = attempt.candidate.deployment
    total_s = attempt.ended_at - attempt.started_at
    ttft_s = _ttft_s(attempt, outcome, total_s)
    return Observation(
        deployment=deployment.id,
        fingerprint=deployment.fingerprint,
        prompt_tokens=outcome.prompt_tokens or 0,
        output_tokens=outcome.output_tokens or 0,
        ttft_s=total_s if ttft_s is None else ttft_s,
        total_s=total_s,
        cached_tokens=outcome.cached_tokens,
        prefill_s=outcome.prefill_s,
        decode_s=outcome.decode_s,
        queue_s=outcome.queue_s,
        load_s=outcome.load_s,
        slots=deployment.slots,
        clean=not attempt.was_cold and ttft_s is not None,
        neighbours=attempt.neighbours,
        new_prompt=attempt.new_prompt,
        predicted=attempt.candidate.estimate,
        expected_output=attempt.exchange.facts.expected_output,
    )


def _ttft_s(attempt: Attempt, outcome: Outcome, total_s: float) -> float | None:
    """The time to the first token; where an answer came as one body, the part of the total that was predicted."""
    if outcome.first_token_at is not None:
        return outcome.first_token_at - attempt.started_at
    if attempt.exchange.facts.operation is Operation.EMBEDDINGS:
        return total_s
    estimate = attempt.candidate.estimate
    return None if estimate is None else total_s * estimate.ttft_s / estimate.total_s
