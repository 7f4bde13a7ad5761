"""What another thread tells reaches the loop's queues, whole and in order, with few calls."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any, ClassVar

import pytest

from engine.courier import Courier


async def test_what_is_told_while_the_loop_is_busy_comes_by_one_call() -> None:
    loop, courier = asyncio.get_running_loop(), Courier()
    calls: list[object] = []
    real = loop.call_soon_threadsafe

    def counted(*call: object) -> asyncio.Handle:
        calls.append(call)
        return real(*call)  # type: ignore[arg-type]

    loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
    queues: list[asyncio.Queue[int]] = [asyncio.Queue(), asyncio.Queue()]
    for number in range(10):
        courier.carry(loop, queues[number % 2], number)
    assert len(calls) == 1
    told = [[await queue.get() for _ in range(5)] for queue in queues]
    assert told == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    courier.carry(loop, queues[0], 10)
    assert await queues[0].get() == 10
    assert len(calls) == 2


async def test_what_is_told_after_the_last_was_taken_comes_too() -> None:
    loop, courier, queue = asyncio.get_running_loop(), Courier(), asyncio.Queue[int]()

    class Emptied(deque[Any]):
        """Another thread tells one more just when all were taken."""

        late: ClassVar = [2]

        def __len__(self) -> int:
            left = super().__len__()
            if not left and self.late:
                courier.carry(loop, queue, self.late.pop())
            return left

    courier._under_way = Emptied()
    courier.carry(loop, queue, 1)
    async with asyncio.timeout(5):
        assert [await queue.get(), await queue.get()] == [1, 2]


async def test_nothing_is_lost_or_changes_its_place_between_two_threads() -> None:
    loop, courier, queue = asyncio.get_running_loop(), Courier(), asyncio.Queue[int]()
    many = 20_000

    def tell() -> None:
        for number in range(many):
            courier.carry(loop, queue, number)

    teller = threading.Thread(target=tell)
    teller.start()
    async with asyncio.timeout(30):
        assert [await queue.get() for _ in range(many)] == list(range(many))
    teller.join()


def test_a_loop_that_is_closed_is_said_each_time_and_nothing_is_kept() -> None:
    loop, courier = asyncio.new_event_loop(), Courier()
    loop.close()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="closed"):
            courier.carry(loop, asyncio.Queue(), 1)
    assert not courier._under_way
