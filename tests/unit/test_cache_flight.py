"""One call for many: who reads gets everything, who leaves disturbs nobody, and the last one turns off the light."""

from __future__ import annotations

import asyncio

import pytest

from cache.flight import Abandoned, Flight, Flights, Reader
from cache.head import Head

HEAD = Head("m", "a", "llamacpp", "bf16", True)


class Engine:
    """What a flight's task calls: gives pieces when told to."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        self.calls = 0
        self.cancelled = asyncio.Event()
        self.taken = 0

    async def drive(self, flight: Flight) -> None:
        self.calls += 1
        flight.take_off(HEAD)
        try:
            while (piece := await self.pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                await flight.add(piece)
                self.taken += 1
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def give(self, *pieces: bytes | BaseException | None) -> None:
        for piece in pieces:
            self.pieces.put_nowait(piece)


async def all_of(reader: Reader) -> bytes:
    pieces = []
    while (piece := await reader.read()) is not None:
        pieces.append(piece)
    return b"".join(pieces)


async def test_two_hundred_readers_are_one_call_and_all_get_everything() -> None:
    engine, flights = Engine(), Flights()
    flight, first = flights.begin("k", engine.drive)
    readers = [first]
    for i, piece in enumerate((b"a", b"b", b"c")):
        readers += [flight.join() for _ in range(66)]
        engine.give(piece)
        while len(flight.pieces) == i:  # noqa: ASYNC110
            await asyncio.sleep(0)
    waiting = asyncio.gather(*(all_of(reader) for reader in readers))
    engine.give(b"d", None)
    assert set(await waiting) == {b"abcd"}
    assert (engine.calls, flight.head, flight.joined) == (1, HEAD, 199)
    assert flights.find("k") is None


async def test_who_comes_in_the_middle_gets_what_has_been_at_once() -> None:
    engine, flights = Engine(), Flights()
    _, first = flights.begin("k", engine.drive)
    engine.give(b"a", b"b")
    assert await first.read() == b"ab"
    found = flights.find("k")
    assert found is not None
    late = found.join()
    assert await late.read() == b"ab"
    engine.give(b"c", None)
    assert await all_of(first) == await all_of(late) == b"c"


async def test_when_the_first_leaves_the_others_go_on() -> None:
    engine, flights = Engine(), Flights()
    flight, first = flights.begin("k", engine.drive)
    with flight.join() as other:
        engine.give(b"a")
        assert await first.read() == b"a"
        flight.leave(first)
        engine.give(b"b", None)
        assert await all_of(other) == b"ab"
    assert not engine.cancelled.is_set()


async def test_when_the_last_leaves_the_call_ends_and_nobody_joins_it() -> None:
    engine, flights = Engine(), Flights()
    flight, first = flights.begin("k", engine.drive)
    engine.give(b"a")
    await first.read()
    flight.leave(first)
    assert flights.find("k") is None
    await engine.cancelled.wait()
    again, _ = flights.begin("k", engine.drive)
    assert again is not flight
    await flights.aclose()


async def test_a_flight_that_is_left_before_it_began_is_over() -> None:
    engine, flights = Engine(), Flights()
    flight, first = flights.begin("k", engine.drive)
    flight.leave(first)
    with pytest.raises(Abandoned):
        await first.read()
    assert engine.calls == 0


async def test_a_failure_reaches_everyone_after_what_there_was() -> None:
    engine, flights = Engine(), Flights()
    flight, first = flights.begin("k", engine.drive)
    other = flight.join()
    engine.give(b"a", ValueError("broken"))
    for reader in (first, other):
        assert await reader.read() == b"a"
        with pytest.raises(ValueError, match="broken"):
            await reader.read()


async def test_a_reader_that_is_cancelled_disturbs_nobody() -> None:
    engine, flights = Engine(), Flights()
    flight, first = flights.begin("k", engine.drive)
    other = asyncio.create_task(all_of(flight.join()))
    stuck = asyncio.create_task(first.read())
    await asyncio.sleep(0)
    stuck.cancel()
    engine.give(b"a", None)
    assert await other == b"a"


async def test_a_large_answer_is_not_held_it_waits_for_its_slowest_reader() -> None:
    engine, flights = Engine(), Flights(most_bytes=10)
    flight, fast = flights.begin("k", engine.drive)
    slow = flight.join()
    engine.give(*[b"12345"] * 20, None)
    seen = b""
    while flights.find("k") is not None:
        seen += await fast.read() or b""
    assert flight.pieces == [] or len(b"".join(flight.pieces)) <= 15
    assert engine.taken < 20
    rest, theirs = await asyncio.gather(all_of(fast), all_of(slow))
    assert seen + rest == theirs == b"12345" * 20
    assert flight.pieces == []


async def test_closing_ends_every_call() -> None:
    engines, flights = [Engine() for _ in range(3)], Flights()
    readers = [flights.begin(i, engine.drive)[1] for i, engine in enumerate(engines)]
    engines[0].give(b"a")
    await readers[0].read()
    await flights.aclose()
    assert engines[0].cancelled.is_set()
    assert len(flights) == 0
    for reader in readers:
        with pytest.raises(Abandoned):
            await reader.read()


async def test_a_patient_reader_gets_all_at_the_end_and_until_then_the_call_can_begin_anew() -> None:
    engine, flights = Engine(), Flights()
    flight, reader = flights.begin("k", engine.drive, patient=True)
    reading = asyncio.create_task(all_of(reader))
    engine.give(b"a", b"b")
    while engine.taken < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert not flight.taken
    flight.begin_anew()
    engine.give(b"c", None)
    assert await reading == b"c"
    assert flight.taken


async def test_what_a_reader_has_cannot_be_taken_back() -> None:
    engine, flights = Engine(), Flights()
    flight, patient = flights.begin("k", engine.drive, patient=True)
    engine.give(b"a")
    assert await flight.join().read() == b"a"
    assert flight.taken
    with pytest.raises(AssertionError):
        flight.begin_anew()
    engine.give(b"b", None)
    assert await all_of(patient) == b"ab"


async def test_patience_ends_where_a_flight_can_hold_no_more() -> None:
    engine, flights = Engine(), Flights(most_bytes=8)
    flight, patient = flights.begin("k", engine.drive, patient=True)
    reading = asyncio.create_task(all_of(patient))
    pieces = [b"%d" % i * 3 for i in range(10)]
    engine.give(*pieces, None)
    assert await reading == b"".join(pieces)
    assert flight.pieces == []
