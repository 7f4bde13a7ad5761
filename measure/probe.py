"""One measurement request: a fresh prompt, a forced output length, and what came of it as a ``Run``."""

from __future__ import annotations

import asyncio
import random

from adapters.base import Adapter, Answer, Call, Outcome
from adapters.errors import Broken, TimedOut
from measure.calls import call_to, prompt_fields
from measure.output import embedding_faults, stop_faults, streamed_text, text_faults
from measure.prompts import BYTES_PER_TOKEN, prompt, prompt_after
from measure.records import Asked, Run
from policies.types import Deployment, Operation

RUN_LIMIT_S = 60.0
"""A request that takes longer has failed."""

_LEAST_BYTES, _MOST_BYTES = 0.5, 16.0
"""Of a token, in the mean of a prompt; an engine that counts otherwise is not to be followed."""

_FORCED: dict[str, object] = {"ignore_eos": True}
_ENGINE_FIELDS: dict[str, dict[str, object]] = {
    # Its template's opening would be found in the cache; and no answer is to end before the wanted length.
    "llamacpp": _FORCED | {"cache_prompt": False},
    "builtin": _FORCED,
    "vllm": _FORCED,
    "sglang": _FORCED,
}
"""Fields that an engine kind knows beside OpenAI's, for a fixed amount of work. Others would refuse them."""


class Probe:
    """Sends measurement requests to one deployment, each with a prompt that no earlier one began like.

    Every method may raise ``EngineError``. Cancelling one ends its request at the engine.
    """

    def __init__(self, adapter: Adapter, deployment: Deployment, *, seed: int | None = None) -> None:
        """``seed`` is that of the first prompt: by chance unless given, since the engine may still hold what an
        earlier measurement sent."""
        self.adapter = adapter
        """May be replaced, when the engine was started anew."""
        self.deployment = deployment
        self.operation = _operation(deployment)
        self.seed = random.randrange(1_000_000) if seed is None else seed
        self._seen: dict[int, tuple[int, int]] = {}
        """Bytes and tokens of the prompts so far, by the length that was asked for: short ones are other texts."""
        self._sent = (0, 0)

    @property
    def forces_length(self) -> bool:
        """Whether the engine can be made to write exactly as many tokens as asked for."""
        return "ignore_eos" in _ENGINE_FIELDS.get(self.deployment.engine, {})

    def asked(self, prompt_tokens: int, output_tokens: int, *, concurrency: int = 1, prefix_tokens: int = 0) -> Asked:
        """Say what requests of this shape ask for, from the next one on."""
        precision = self.adapter.endpoint.precision
        return Asked(
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            concurrency=concurrency,
            operation=self.operation,
            precision=precision.value if precision else "",
            seed=self.seed,
            prefix_tokens=prefix_tokens,
            forced=self.forces_length and self.operation is not Operation.EMBEDDINGS,
        )

    async def send(self, prompt_tokens: int, output_tokens: int, *, prefix_tokens: int = 0) -> Answer:
        """Send one request; the caller closes the answer. See ``Adapter.send``."""
        return await self.adapter.send(self._call(prompt_tokens, output_tokens, prefix_tokens))

    async def run(
        self, prompt_tokens: int, output_tokens: int, *, prefix_tokens: int = 0, limit_s: float = RUN_LIMIT_S
    ) -> Run:
        """Time one request, whose first ``prefix_tokens`` are those of all such requests.

        Raises ``TimedOut`` past ``limit_s``.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            async with asyncio.timeout(limit_s):
                answer = await self.send(prompt_tokens, output_tokens, prefix_tokens=prefix_tokens)
                data = await answer.read_all()
        except TimeoutError:
            raise TimedOut(f"no answer within {limit_s:g} s", engine=self.deployment.endpoint) from None
        return self._result(prompt_tokens, output_tokens, answer.outcome, data, begun, clock())

    def calibrate(self, run: Run) -> None:
        """Aim better from now on: ``run`` is what the last prompt turned out to be, or one as long as that."""
        length, size = self._sent
        if run.prompt_tokens and size:
            known_bytes, known_tokens = self._seen.pop(length, (0, 0))
            self._seen[length] = known_bytes + size, known_tokens + run.prompt_tokens

    def _bytes_per_token(self, length: int) -> float:
        """What was seen for this length, else for the one before it, else a guess."""
        if not self._seen:
            return BYTES_PER_TOKEN
        size, tokens = self._seen.get(length) or next(reversed(self._seen.values()))
        return min(max(_LEAST_BYTES, size / tokens), _MOST_BYTES)

    def _call(self, prompt_tokens: int, output_tokens: int, prefix_tokens: int) -> Call:
        if prefix_tokens:
            text = prompt_after(prefix_tokens, prompt_tokens, self.seed, self._bytes_per_token(prompt_tokens))
        else:
            text = prompt(prompt_tokens, self.seed, self._bytes_per_token(prompt_tokens))
        self.seed += 1
        self._sent = prompt_tokens, len(text.encode())
        deployment = self.deployment
        generates = self.operation is not Operation.EMBEDDINGS
        fields = prompt_fields(self.operation, text)
        if generates:
            fields |= {"max_tokens": output_tokens, "temperature": 0, "stream": True}
            fields |= _ENGINE_FIELDS.get(deployment.engine, {})
            if prefix_tokens:
                fields.pop("cache_prompt", None)
        return call_to(deployment, self.operation, fields, prompt_tokens=prompt_tokens)

    def _result(
        self, prompt_tokens: int, asked_output: int, outcome: Outcome, data: bytes, begun: float, ended: float
    ) -> Run:
        generates = self.operation is not Operation.EMBEDDINGS
        first = outcome.first_token_at if generates else ended
        if first is None:
            raise Broken("the answer has no token", engine=self.deployment.endpoint)
        output_tokens, reason = _output_tokens(outcome) if generates else 0, outcome.finish_reason or ""
        if generates:
            faults = text_faults(streamed_text(data))
            faults += stop_faults(reason, output_tokens, asked_output, forced=self.forces_length)
        else:
            faults = embedding_faults(data)
        return Run(
            prompt_tokens=prompt_tokens if outcome.prompt_tokens is None else outcome.prompt_tokens,
            output_tokens=output_tokens,
            ttft_s=first - begun,
            total_s=ended - begun,
            decode_s=(outcome.last_token_at or first) - first,
            cached_tokens=outcome.cached_tokens,
            engine_queue_s=outcome.queue_s,
            engine_load_s=outcome.load_s,
            engine_prefill_s=outcome.prefill_s,
            engine_decode_s=outcome.decode_s,
            faults=faults,
            finish_reason=reason,
        )


def _output_tokens(outcome: Outcome) -> int:
    return outcome.output_chunks if outcome.output_tokens is None else outcome.output_tokens


def _operation(deployment: Deployment) -> Operation:
    """Plain completion first: no template opens every prompt with the same, cached, tokens."""
    for operation in (Operation.COMPLETION, Operation.CHAT, Operation.EMBEDDINGS):
        if operation.capability in deployment.capabilities:
            return operation
    raise ValueError(f"{deployment.id} neither generates nor embeds: there is nothing to measure")
