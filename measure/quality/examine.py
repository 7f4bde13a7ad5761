"""Sends the suite's prompts to one deployment, greedily and one after the other, and keeps its replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from adapters.base import Adapter, Call
from adapters.errors import Broken, Busy, EngineError, Loading, Rejected, TimedOut
from adapters.heard import NOT_JSON
from measure.calls import call_to
from measure.progress import Progress, silent
from measure.quality.prompts import Prompt
from measure.quality.reply import Reply, read_reply
from measure.traffic import Traffic
from policies.types import Capability, Deployment, Operation

RIVALS = 10
"""So many other tokens' log-probabilities are asked for at each place."""
REPLY_LIMIT_S = 300.0
"""The first reply may have to wait for the model to be loaded."""
QUIET_LIMIT_S = 30.0
"""So long a prompt waits for live traffic to end. Then the others no longer wait: it slows, and changes no answer."""
RETRY_S = 1.0
LONGEST_RETRY_S = 10.0
"""How long an engine is left alone that takes no more for now: as it says, up to the longest."""
FAILURES_IN_A_ROW = 3
"""After so many an engine is given up."""

_BYTES_PER_TOKEN = 3
_NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
_ENGINE_FIELDS: dict[str, dict[str, object]] = {
    # A cached prefix is computed in other batches, whose rounding differs.
    "llamacpp": {"cache_prompt": False, "repeat_penalty": 1.0, **_NO_THINKING},
    "builtin": {**_NO_THINKING},
    "vllm": {"repetition_penalty": 1.0, **_NO_THINKING},
    "sglang": {"repetition_penalty": 1.0, **_NO_THINKING},
    "ollama": {"repeat_penalty": 1.0, "reasoning_effort": "none"},
    "lmstudio": {"repeat_penalty": 1.0},
}
"""What makes an engine kind's answers plainly greedy: several have a repetition penalty of their own, or take the
model's. Thinking would not come to an end within the suite's short limits."""


@dataclass(frozen=True, slots=True)
class Examinee:
    """A deployment, and how to reach it: ``connect`` returns what sends, or raises ``Unreachable``. ``traffic`` is the
    live one on its hardware, where there may be some."""

    deployment: Deployment
    connect: Callable[[], Adapter]
    traffic: Traffic | None = None

    def takes(self, prompt: Prompt) -> bool:
        """Whether it can be asked this at all: it knows tools where there are some, and its context is long enough."""
        context = self.deployment.context
        room = context is None or prompt.text_bytes // _BYTES_PER_TOKEN + prompt.max_tokens <= context
        return room and prompt.needs <= self.deployment.capabilities


async def examine(
    examinee: Examinee, prompts: Sequence[Prompt], *, force_calls: bool = False, progress: Progress = silent
) -> dict[str, Reply]:
    """Return a reply for each prompt, by its id; one that failed says why.

    Each is tried twice unless the engine says that it is wrong. ``force_calls`` makes prompts with tools require a
    call. Live traffic goes first. Raises the ``EngineError`` when ``FAILURES_IN_A_ROW`` prompts failed. Cancelling ends
    the request in flight.
    """
    replies: dict[str, Reply] = {}
    failures = 0
    traffic = examinee.traffic
    for done, prompt in enumerate(prompts):
        progress(examinee.deployment.id, done, len(prompts), prompt.id)
        if traffic is not None and not await traffic.idle(QUIET_LIMIT_S):
            traffic = None
        try:
            replies[prompt.id] = await _ask_twice(examinee, prompt, force_calls=force_calls)
            failures = 0
        except EngineError as error:
            replies[prompt.id] = Reply(failed=f"{type(error).__name__}: {error.message}")
            failures += not isinstance(error, Rejected)
            if failures == FAILURES_IN_A_ROW:
                raise
    progress(examinee.deployment.id, len(prompts), len(prompts), "answered")
    return replies


async def _ask_twice(examinee: Examinee, prompt: Prompt, *, force_calls: bool) -> Reply:
    try:
        return await _ask(examinee, prompt, force_calls=force_calls)
    except Rejected:
        raise
    except (Busy, Loading) as error:
        await asyncio.sleep(min(error.retry_after_s or RETRY_S, LONGEST_RETRY_S))
    except EngineError:
        pass  # the second time counts
    return await _ask(examinee, prompt, force_calls=force_calls)


async def _ask(examinee: Examinee, prompt: Prompt, *, force_calls: bool) -> Reply:
    endpoint = examinee.deployment.endpoint
    try:
        async with asyncio.timeout(REPLY_LIMIT_S):
            answer = await examinee.connect().send(_call(examinee, prompt, force_calls=force_calls))
            data = await answer.read_all()
    except TimeoutError:
        raise TimedOut(f"no answer within {REPLY_LIMIT_S:g} s", engine=endpoint) from None
    try:
        body = msgspec.json.decode(data, type=dict[str, Any])
    except NOT_JSON as error:
        raise Broken("its answer is not a JSON object", engine=endpoint) from error
    return read_reply(body, answer.outcome.prompt_tokens)


def _call(examinee: Examinee, prompt: Prompt, *, force_calls: bool) -> Call:
    deployment = examinee.deployment
    fields: dict[str, object] = {
        "messages": prompt.messages,
        "max_tokens": prompt.max_tokens,
        "temperature": 0,
        "seed": 0,
        **_ENGINE_FIELDS.get(deployment.engine, {}),
    }
    if Capability.LOGPROBS in deployment.capabilities:
        fields |= {"logprobs": True, "top_logprobs": RIVALS}
    if prompt.tools:
        fields |= {"tools": prompt.tools, "tool_choice": "required" if force_calls else "auto"}
    return call_to(deployment, Operation.CHAT, fields, prompt_tokens=prompt.text_bytes // _BYTES_PER_TOKEN)
