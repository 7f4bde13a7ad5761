from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.admission import Admission
from gateway.errors import ApiError
from gateway.settings import KeySettings, LimitSettings

HASH = "sha256:" + "0" * 64


def admission(
    *, max_concurrent: int = 1, queue: int = 10, timeout_s: float = 30, per_key: int | None = None
) -> Admission:
    limits = LimitSettings(max_concurrent=max_concurrent, queue=queue, queue_timeout_s=timeout_s, per_key=per_key)
    keys = (KeySettings(name="a", hash=HASH), KeySettings(name="b", hash=HASH, max_concurrent=2))
    return Admission(limits, keys)


async def waiting(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task and let it come as far as it gets."""
    task = asyncio.ensure_future(coroutine)
    await settle()
    return task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_requests_within_the_limits_enter_at_once() -> None:
    gate = admission(max_concurrent=2)
    assert gate.try_enter("a")
    assert gate.try_enter("b")
    assert not gate.try_enter("a")
    gate.leave("b")
    assert gate.try_enter("a")


async def test_those_who_wait_enter_in_their_order() -> None:
    gate = admission()
    order: list[int] = []

    async def request(number: int) -> None:
        await gate.enter("a")
        order.append(number)

    gate.try_enter("a")
    tasks = [await waiting(request(number)) for number in range(3)]
    for expected in ([0], [0, 1], [0, 1, 2]):
        gate.leave("a")
        await settle()
        assert order == expected
    await asyncio.gather(*tasks)
    assert (gate.running, gate.waiting) == (1, 0)


async def test_a_backlog_of_one_key_does_not_hold_up_another() -> None:
    gate = admission()
    order: list[str] = []

    async def request(key: str) -> None:
        await gate.enter(key)
        order.append(key)

    gate.try_enter("a")
    tasks = [await waiting(request(key)) for key in ("a", "a", "a", "b")]
    holder = "a"
    for _ in range(4):
        gate.leave(holder)
        await settle()
        holder = order[-1]
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "a", "a"]


async def test_a_key_at_its_own_limit_holds_up_nobody_else() -> None:
    gate = admission(max_concurrent=10, per_key=1)
    assert gate.try_enter("a")
    waiter = await waiting(gate.enter("a"))
    assert gate.try_enter("b")
    assert gate.try_enter("b")
    assert not gate.try_enter("b")
    assert gate.try_enter("")
    assert not waiter.done()
    gate.leave("a")
    await waiter


async def test_beyond_the_queue_it_is_429_with_a_time_to_come_back() -> None:
    gate = admission(queue=1)
    gate.try_enter("a")
    waiter = await waiting(gate.enter("a"))
    with pytest.raises(ApiError) as caught:
        await gate.enter("a")
    assert caught.value.status == 429
    assert int(dict(caught.value.headers)[b"retry-after"]) >= 1
    gate.leave("a")
    await waiter


async def test_without_a_queue_the_no_comes_at_once_and_names_the_keys_limit() -> None:
    gate = admission(max_concurrent=10, queue=0, per_key=1)
    gate.try_enter("a")
    with pytest.raises(ApiError, match="The key 'a' has its 1 requests running"):
        await gate.enter("a")


async def test_whoever_waits_too_long_gets_429_and_leaves_the_queue() -> None:
    gate = admission(timeout_s=0.01)
    gate.try_enter("a")
    with pytest.raises(ApiError) as caught:
        await gate.enter("b")
    assert caught.value.status == 429
    assert gate.waiting == 0
    gate.leave("a")
    assert gate.running == 0


async def test_nobody_waits_past_the_deadline_of_its_request() -> None:
    gate = admission(timeout_s=60)
    gate.try_enter("a")
    with pytest.raises(ApiError) as refusal:
        async with gate.admitted("b", left_s=0.02):
            pass
    assert refusal.value.status == 429
    assert "none became free in 0.02 s" in refusal.value.message
    assert (gate.running, gate.waiting) == (1, 0)


async def test_a_client_that_leaves_while_it_waits_frees_its_place_in_the_queue() -> None:
    gate = admission()
    gate.try_enter("a")
    gone = await waiting(gate.enter("a"))
    other = await waiting(gate.enter("a"))
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert gate.waiting == 1
    gate.leave("a")
    await other
    assert (gate.running, gate.waiting) == (1, 0)


async def test_a_place_given_to_a_client_that_leaves_in_the_same_moment_goes_to_the_next() -> None:
    gate = admission()
    gate.try_enter("a")
    gone = await waiting(gate.enter("a"))
    other = await waiting(gate.enter("a"))
    gate.leave("a")
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await other
    assert gate.running == 1


async def test_a_cancelled_client_is_passed_over_even_before_its_task_has_run() -> None:
    gate = admission()
    gate.try_enter("a")
    gone = await waiting(gate.enter("a"))
    other = await waiting(gate.enter("a"))
    gone.cancel()
    gate.leave("a")
    await other
    assert gone.cancelled()
    assert (gate.running, gate.waiting) == (1, 0)


async def test_the_block_form_gives_its_place_back_whatever_happens() -> None:
    gate = admission()

    async def fail() -> None:
        async with gate.admitted("a"):
            assert gate.running == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert gate.running == 0


async def test_nothing_is_remembered_of_keys_that_have_come_and_gone() -> None:
    gate = admission()
    gate.try_enter("a")
    for number in range(100):
        gone = await waiting(gate.enter(f"key-{number % 7}"))
        gone.cancel()
        await settle()
    assert len(gate._turns) <= 8
    gate.leave("a")
    assert (gate.running, gate.waiting, gate._keys) == (0, 0, {})


async def test_the_time_to_come_back_grows_with_the_queue() -> None:
    gate = admission(queue=50)
    gate.try_enter("a")
    for _ in range(3):
        await asyncio.sleep(0.05)
        gate.leave("a")
        gate.try_enter("a")
    tasks = [await waiting(gate.enter("a")) for _ in range(50)]
    with pytest.raises(ApiError) as caught:
        await gate.enter("b")
    assert int(dict(caught.value.headers)[b"retry-after"]) >= 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
