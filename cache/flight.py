"""One engine call for many equal requests: an answer on its way, and all who read it, each from the beginning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final

from cache.entry import Entry
from cache.head import Head
from cache.tasks import end

MOST_BYTES: Final = 4 << 20
"""What a flight holds for those who come later; beyond it nobody new may join, and it waits for its slowest reader."""


class Flight:
    """An answer that a task of its own fetches piece by piece.

    ``head`` is what readers have to know before the first piece. The task ends with the last reader: nobody waits for
    it then. It is the task that calls ``take_off``, ``add``, ``begin_anew``, ``finish`` and ``fail``. ``patient`` says
    that whoever began it wants it at its end only.
    """

    def __init__(
        self, on_closed: Callable[[Flight], None], most_bytes: int = MOST_BYTES, *, patient: bool = False
    ) -> None:
        self.head: Head | Entry | None = None
        """An entry stands for the whole answer: then there are no pieces."""
        self.begun_by: object = None
        """What its beginner leaves there for those who join it later."""
        self.whole = b""
        """The one body that its pieces become, where the task has joined them anyway."""
        self.patient = patient
        self.done = False
        self.taken = False
        """Whether somebody has been given a piece: what has come can no more be taken back."""
        self.joined = 0
        """How many readers there have been."""
        self._clock = asyncio.get_running_loop().time
        self._error: BaseException | None = None
        self._pieces: list[bytes] = []
        self.times: list[float] = []
        """When each piece came, on the loop's clock."""
        self._first = 0  # the number of the piece that is the first in the list
        self._bytes = 0
        self._most_bytes = most_bytes
        self._readers: set[Reader] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._room: asyncio.Future[None] | None = None
        self._on_closed = on_closed
        self._task: asyncio.Task[None] | None = None

    def start(self, drive: Coroutine[Any, Any, None]) -> None:
        """Begin to fetch it."""
        self._task = asyncio.get_running_loop().create_task(self._drive(drive), name="flight")
        self._task.add_done_callback(lambda _: self._never_began(drive))

    def _never_began(self, drive: Coroutine[Any, Any, None]) -> None:
        """A task that is cancelled before its first step runs none of its code."""
        drive.close()
        self.fail(Abandoned())

    async def _drive(self, drive: Coroutine[Any, Any, None]) -> None:
        try:
            await drive
        except asyncio.CancelledError:
            self.fail(Abandoned())
            raise
        except BaseException as error:  # noqa: BLE001 - it is the readers' to see
            self.fail(error)
        else:
            self.finish()

    # --- the task's side

    def take_off(self, head: Head | Entry) -> None:
        """Say what the readers have to know; the last time counts that is before the first piece."""
        self.head = head

    async def add(self, piece: bytes) -> None:
        """Take in the next piece. Waits for the slowest reader once it holds as much as it may."""
        self._pieces.append(piece)
        self.times.append(self._clock())
        self._bytes += len(piece)
        self._wake()
        if self._bytes > self._most_bytes:
            self._on_closed(self)
            self._trim()
            while self._bytes > self._most_bytes:
                self._room = asyncio.get_running_loop().create_future()
                self._wake()
                await self._room

    def begin_anew(self) -> None:
        """Forget what has come, since the call failed and is made again. Only while nobody has taken any of it."""
        assert not self.taken
        self._pieces.clear()
        self.times.clear()
        self._bytes = 0

    def finish(self) -> None:
        """It is whole."""
        self._end()

    def fail(self, error: BaseException) -> None:
        """It will not become whole: every reader gets this error, after what there is."""
        if not self.done:
            self._error = error
        self._end()

    def _end(self) -> None:
        if not self.done:
            self.done = True
            self._on_closed(self)
            self._wake()

    @property
    def holds_all(self) -> bool:
        """Whether somebody could still read it from its beginning."""
        return not self._first

    @property
    def pieces(self) -> list[bytes]:
        """All pieces so far; empty when some are forgotten, because it is too large."""
        return [] if self._first else self._pieces

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _trim(self) -> None:
        """Forget the pieces that everybody has."""
        done = min((reader.position for reader in self._readers), default=self._first) - self._first
        if done > 0:
            self._bytes -= sum(map(len, self._pieces[:done]))
            del self._pieces[:done]
            self._first += done
        if self._room is not None and self._bytes <= self._most_bytes and not self._room.done():
            self._room.set_result(None)

    # --- the readers' side

    def join(self, *, patient: bool = False) -> Reader:
        """Return a reader, to be left at the end. Only while it holds all its pieces.

        One that is patient is given everything at the end, unless that is more than a flight can hold.
        """
        assert self._first == 0
        reader = Reader(self, patient=patient)
        self._readers.add(reader)
        self.joined += 1
        return reader

    def leave(self, reader: Reader) -> None:
        """Take a reader out; with the last one the call ends."""
        self._readers.discard(reader)
        if not self._readers and not self.done and self._task is not None:
            self._on_closed(self)
            self._task.cancel()
        elif self._room is not None:
            self._trim()

    async def aclose(self) -> None:
        """End the task and wait for it."""
        await end(self._task)

    async def read(self, reader: Reader) -> bytes | None:
        """Return all that the reader does not have yet, ``None`` at the end. Raises what the task failed with."""
        while True:
            start = reader.position - self._first
            is_due = self.done or not reader.patient or self._room is not None
            if is_due and start < len(self._pieces):
                self.taken = True
                pieces = self._pieces[start:]
                reader.position = self._first + len(self._pieces)
                if self._room is not None:
                    self._trim()
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if self._error is not None:
                raise self._error
            if self.done:
                return None
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class Reader:
    """One who reads a flight: ``with flight.join() as reader``."""

    __slots__ = ("flight", "patient", "position")

    def __init__(self, flight: Flight, *, patient: bool) -> None:
        self.flight = flight
        self.patient = patient
        self.position = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.flight.leave(self)

    async def read(self) -> bytes | None:
        """Return the next bytes, ``None`` at the end. Raises what the flight failed with."""
        return await self.flight.read(self)


class Abandoned(Exception):
    """The task was ended before the answer was whole: nobody waited for it any more, or this process stops."""


class Flights:
    """The flights of this process that can be joined, by what they answer."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._open: dict[Hashable, Flight] = {}
        self._all: set[Flight] = set()
        self._most_bytes = most_bytes

    def __len__(self) -> int:
        return len(self._open)

    def find(self, id_: Hashable) -> Flight | None:
        """Return the flight that answers this, if one can be joined."""
        return self._open.get(id_)

    def begin(
        self, id_: Hashable, drive: Callable[[Flight], Coroutine[Any, Any, None]], *, patient: bool = False
    ) -> tuple[Flight, Reader]:
        """Start a flight that ``drive`` fetches, and join it."""

        def closed(flight: Flight) -> None:
            if self._open.get(id_) is flight:
                del self._open[id_]
            if flight.done:
                self._all.discard(flight)

        flight: Flight = Flight(closed, self._most_bytes, patient=patient)
        self._open[id_] = flight
        self._all.add(flight)
        reader = flight.join(patient=patient)
        flight.start(drive(flight))
        return flight, reader

    async def aclose(self) -> None:
        """End all of them."""
        for flight in tuple(self._all):
            await flight.aclose()
