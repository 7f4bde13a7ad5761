"""Ctrl+C while a command works: it ends in order, and only once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any

INTERRUPTED = 130
"""The exit status of what Ctrl+C has ended: 128 and the signal's number, as shells have it."""


def run_to_the_end(work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work``. Returns False when Ctrl+C or SIGTERM ended it.

    Then it is cancelled, and what it does at its end is waited for: engines that were started are stopped there, so
    that another Ctrl+C does not interrupt that. Raises what ``work`` raises.
    """
    interrupted = False

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal interrupted
            if not interrupted:
                interrupted = True
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):  # Windows: asyncio's own way is all that there is
                asyncio.get_running_loop().add_signal_handler(number, interrupt)
        await work

    try:
        asyncio.run(main())
    except (asyncio.CancelledError, KeyboardInterrupt):
        return False
    return not interrupted
