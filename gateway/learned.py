"""What serving has taught so far: speeds, token ratios, answer lengths, prefixes; saved so that a restart keeps it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from adapters.base import Outcome
from gateway.incoming import PREFIX_BLOCK_BYTES
from policies.predict import Predictor
from policies.prefix import PrefixMemory
from policies.tokens import OutputLength, TokenRatio
from policies.types import Deployment, Observation, Operation, PairSample, SpeedSample

if TYPE_CHECKING:
    from gateway.attempt import Attempt

logger = logging.getLogger("paceline.learned")


class Learned:
    """The predictor and its helpers, as one thing to ask and to teach."""

    def __init__(self) -> None:
        self.predictor = Predictor()
        self.ratio = TokenRatio()
        self.output = OutputLength()
        self.prefixes = PrefixMemory()
        self._samples: dict[str, tuple[SpeedSample, ...]] = {}
        self._pairs: dict[str, dict[tuple[str, str], PairSample]] = {}
        self._changed: set[str] = set()

    def recall(
        self,
        deployment: Deployment,
        samples: Iterable[SpeedSample],
        pairs: Iterable[PairSample],
        learned: Mapping[str, Any] | None,
    ) -> None:
        """Take what is on record for a fingerprint: the measurement, then what was learned on top of it."""
        self._take(deployment, samples, pairs)
        if learned is None:
            return
        try:
            self.predictor.restore(deployment.fingerprint, learned)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning(
                "%s: what was learned earlier cannot be read (%s); the measurement stands", deployment.id, error
            )

    def measured(self, deployment: Deployment, samples: Iterable[SpeedSample]) -> None:
        """Take a new measurement."""
        self._take(deployment, samples, ())
        self._changed.add(deployment.fingerprint)

    def paired(self, deployment: Deployment, pairs: Iterable[PairSample], deployments: Iterable[Deployment]) -> None:
        """Take what was measured beside neighbours, and begin from it for all others on the same hardware.

        How another engine slows one is a matter of the hardware; how requests in one engine slow each other, of the
        engine's kind as well.
        """
        pairs = tuple(pairs)
        for each in deployments:
            samples = self._samples.get(each.fingerprint)
            if samples and each.hardware.shares(deployment.hardware):
                fitting = [pair for pair in pairs if pair.neighbour == "other" or each.engine == deployment.engine]
                self._take(each, samples, fitting)
                self._changed.add(each.fingerprint)

    def _take(self, deployment: Deployment, samples: Iterable[SpeedSample], pairs: Iterable[PairSample]) -> None:
        kept = self._samples[deployment.fingerprint] = tuple(samples)
        known = self._pairs.setdefault(deployment.fingerprint, {})
        known.update({(pair.neighbour, pair.activity): pair for pair in pairs})
        try:
            self.predictor.measured(deployment.fingerprint, kept, known.values(), deployment.hardware)
        except ValueError as error:
            logger.warning("%s: its measurement cannot be used: %s", deployment.id, error)

    def keep(self, deployments: Collection[Deployment]) -> None:
        """Forget what only those that run can use: what their caches hold, and measurements that nobody knows."""
        self.prefixes.keep({deployment.id for deployment in deployments})
        for gone in [each for each in self._samples if not self.predictor.knows(each)]:
            del self._samples[gone]
            del self._pairs[gone]

    def samples(self, fingerprint: str) -> tuple[SpeedSample, ...]:
        """Return the measurement that predictions started from."""
        return self._samples.get(fingerprint, ())

    def block_tokens(self, model: str) -> int:
        """Return how many tokens one block of a prompt's prefix probably has."""
        one, _ = self.ratio.estimate(model, PREFIX_BLOCK_BYTES)
        two, _ = self.ratio.estimate(model, 2 * PREFIX_BLOCK_BYTES)
        return max(1, two - one)

    def from_answer(self, attempt: Attempt) -> None:
        """Learn from an answer that came whole."""
        outcome, deployment = attempt.outcome, attempt.candidate.deployment
        facts, incoming = attempt.exchange.facts, attempt.exchange.incoming
        if outcome is None or not outcome.prompt_tokens:
            return
        if facts.operation is not Operation.EMBEDDINGS:
            if not incoming.images:
                self.ratio.learn(facts.model, incoming.text_bytes, outcome.prompt_tokens)
            if outcome.output_tokens:
                cut = outcome.finish_reason == "length"
                self.output.learn(facts.model, facts.scope, outcome.output_tokens, was_cut=cut)
            capacity = (deployment.context or 0) * (deployment.slots or 1) or None
            self.prefixes.remember(deployment.id, facts.prefix, self.block_tokens(facts.model), capacity)
        self.predictor.observe(_observation(attempt, outcome), attempt.ended_at)
        self._changed.add(deployment.fingerprint)

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
        clean=not attempt.was_cold and ttft_s is not None,
        neighbours=attempt.neighbours,
        new_prompt=attempt.new_prompt,
    )


def _ttft_s(attempt: Attempt, outcome: Outcome, total_s: float) -> float | None:
    """The time to the first token; where an answer came as one body, the part of the total that was predicted."""
    if outcome.first_token_at is not None:
        return outcome.first_token_at - attempt.started_at
    if attempt.exchange.facts.operation is Operation.EMBEDDINGS:
        return total_s
    estimate = attempt.candidate.estimate
    return None if estimate is None else total_s * estimate.ttft_s / estimate.total_s
