"""The store for asyncio: every call runs in the one thread that owns the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from measure.database import StoreError
from measure.records import Kind, Record
from measure.store import Store
from measure.verdicts import Judged
from policies.types import BatchSample, PairSample, SpeedSample

T = TypeVar("T")


class AsyncStore:
    """``Store``'s calls as coroutines, in the order in which they were made. Each may raise ``StoreError``.

    A call that is cancelled may still take effect.
    """

    def __init__(self, store: Store, thread: ThreadPoolExecutor) -> None:
        self._store = store
        self._thread = thread
        self._closed = False

    @classmethod
    async def open(cls, path: Path | None) -> AsyncStore:
        """Open the file at ``path`` as ``Store`` does; memory when ``None``."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="records")
        try:
            return cls(await asyncio.get_running_loop().run_in_executor(thread, Store, path), thread)
        except BaseException:
            thread.shutdown(wait=False)
            raise

    @property
    def persistent(self) -> bool:
        """False when what is stored ends with this process."""
        return self._store.persistent

    async def add(self, *records: Record) -> None:
        await self._run(lambda: self._store.add(*records))

    async def records(
        self, fingerprint: str | None = None, *, kind: Kind | None = None, limit: int = 1000
    ) -> list[Record]:
        return await self._run(lambda: self._store.records(fingerprint, kind=kind, limit=limit))

    async def imported(self) -> list[Record]:
        return await self._run(self._store.imported)

    async def latest(self, fingerprint: str) -> list[Record]:
        return await self._run(lambda: self._store.latest(fingerprint))

    async def samples(self, fingerprint: str) -> list[SpeedSample]:
        return await self._run(lambda: self._store.samples(fingerprint))

    async def batches(self, fingerprint: str) -> list[BatchSample]:
        return await self._run(lambda: self._store.batches(fingerprint))

    async def changes(self, fingerprint: str) -> int:
        return await self._run(lambda: self._store.changes(fingerprint))

    async def pairs(self, fingerprint: str) -> list[PairSample]:
        return await self._run(lambda: self._store.pairs(fingerprint))

    async def paired(self, fingerprint: str, neighbour: str) -> bool:
        return await self._run(lambda: self._store.paired(fingerprint, neighbour))

    async def save_learned(self, fingerprint: str, state: Mapping[str, Any]) -> None:
        await self._run(lambda: self._store.save_learned(fingerprint, state))

    async def load_learned(self, fingerprint: str) -> dict[str, Any] | None:
        return await self._run(lambda: self._store.load_learned(fingerprint))

    async def save_token_ratios(self, ratios: Mapping[str, Mapping[str, Any]]) -> None:
        await self._run(lambda: self._store.save_token_ratios(ratios))

    async def load_token_ratios(self) -> dict[str, dict[str, Any]]:
        return await self._run(self._store.load_token_ratios)

    async def save_verdict(self, about: Judged, fingerprint: str, details: Mapping[str, Any]) -> None:
        await self._run(lambda: self._store.save_verdict(about, fingerprint, details))

    async def load_verdicts(self, about: Judged) -> dict[str, dict[str, Any]]:
        return await self._run(lambda: self._store.load_verdicts(about))

    async def save_unfinished_bench(self, state: Mapping[str, Any]) -> None:
        await self._run(lambda: self._store.save_unfinished_bench(state))

    async def unfinished_bench(self) -> dict[str, Any]:
        return await self._run(self._store.unfinished_bench)

    async def aclose(self) -> None:
        """Finish the calls that were made, close the file and end the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._store.close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
