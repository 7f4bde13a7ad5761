"""Field lesson 1 with a real llama.cpp: a client leaves the gateway, and the engine's slot is seen free again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import httpx
import pytest
from engines.llama import LlamaServer
from gateways import Gateway, chat_body

pytestmark = pytest.mark.llamacpp

STORY = "Tell me a very long story about a river."
LONG = " ".join(f"w{number}" for number in range(420))
FREE_LIMIT_S = 30.0
"""Far less than what was left to do; the time that it really took is printed."""


async def until(is_so: Callable[[], bool]) -> float:
    """Return the seconds until the engine's slots say so; they are read seldom, since reading them disturbs."""
    begun = time.monotonic()
    async with asyncio.timeout(FREE_LIMIT_S):
        # No event to await: the engine tells nobody when a slot is free.
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    return time.monotonic() - begun


def busy(llamacpp: LlamaServer) -> bool:
    return any(slot["is_processing"] for slot in httpx.get(f"{llamacpp.url}/slots", timeout=FREE_LIMIT_S).json())


def settings(llamacpp: LlamaServer) -> dict[str, object]:
    return {"engines": [{"name": "real", "url": llamacpp.url, "models": {llamacpp.model: "m"}}]}


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("text", [STORY, LONG], ids=["while it writes", "while it reads"])
async def test_the_slot_of_a_client_that_left_is_free_again_long_before_its_answer_would_have_ended(
    llamacpp: LlamaServer, gateway: Callable[..., Gateway], stream: bool, text: str
) -> None:
    running = gateway(**settings(llamacpp))
    body = chat_body(text, stream=stream, max_tokens=1500, temperature=0.9, ignore_eos=True)
    async with running.client() as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await until(lambda: busy(llamacpp))
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
    free_after_s = await until(lambda: not busy(llamacpp))
    print(f"free after {free_after_s:.1f} s")
    await asyncio.to_thread(running.wait_until_idle)
