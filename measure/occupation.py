"""A neighbour at work: requests, one after the other, that keep an engine decoding or prefilling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from adapters.errors import TimedOut
from measure.probe import RUN_LIMIT_S, Probe

T = TypeVar("T")


@asynccontextmanager
async def occupied(probe: Probe, prompt_tokens: int, output_tokens: int) -> AsyncIterator[None]:
    """Keep a deployment busy while the block runs: decoding when it may write several tokens, prefilling otherwise.

    The block begins once the engine is in that phase. Afterwards decoding is ended; a prefill in flight is awaited,
    since engines go on with an abandoned one for a while. Raises the neighbour's ``EngineError``, ``TimedOut`` past
    ``RUN_LIMIT_S`` included.
    """
    prefills = output_tokens == 1
    at_work, enough = asyncio.Event(), asyncio.Event()
    work = asyncio.create_task(_work(probe, prompt_tokens, output_tokens, at_work, enough))
    work.add_done_callback(lambda _: at_work.set())  # its error, if it has one, is raised below
    try:
        await _within_limit(probe, at_work.wait())
        if work.done():
            await work
        yield
        if work.done():
            await work
        if prefills:
            enough.set()
            await _within_limit(probe, work)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def _work(
    probe: Probe, prompt_tokens: int, output_tokens: int, at_work: asyncio.Event, enough: asyncio.Event
) -> None:
    while not enough.is_set():
        answer = await probe.send(prompt_tokens, output_tokens)
        if output_tokens == 1:  # from here on it prefills; there is no other sign of that
            at_work.set()
        try:
            while await answer.read() is not None:
                if answer.outcome.first_token_at is not None:
                    at_work.set()
        finally:
            answer.close()


async def _within_limit(probe: Probe, awaitable: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(RUN_LIMIT_S):
            return await awaitable
    except TimeoutError:
        raise TimedOut(f"not done within {RUN_LIMIT_S:g} s", engine=probe.deployment.endpoint) from None
