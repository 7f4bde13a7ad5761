"""The processes of tensor parallelism: rank 0 serves and starts the others. All end with any of them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Thread

from engine.config import ModelConfig
from engine.errors import EngineError
from engine.fitting import device_of, open_runner
from engine.options import Options
from engine.parallel import Group, join, leave
from engine.sampler import Sampler


def start_ranks(config: ModelConfig, context: int, options: Options, on_lost: Callable[[str], None]) -> Group:
    """Rank 0's group, once the other ranks are there; whoever ends this process kills its children before.

    ``on_lost`` is called, on another thread, when one of them fails. Raises ``UnsupportedModel``, before anything is
    started, for a model or a machine that cannot be shared out.
    """
    group = Group(size=options.ranks)
    device = device_of(options, group)
    group.share(config.heads, "heads")
    group.share(config.kv_heads, "key/value heads")
    group.share(config.intermediate, "intermediate channels")
    if group.size == 1:
        return group
    # A terminal or a supervisor may send these to all processes of a group: the ranks end when rank 0 has done so. They
    # inherit what this thread blocks; the tracker that comes with the first of them would unblock it again.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    started = [_start(rank, config, context, options) for rank in range(1, group.size)]
    for process, _ in started:
        Thread(target=_watch, args=(process, on_lost), name=f"watch-{process.name}", daemon=True).start()
    return join(0, group.size, tuple(link for _, link in started), device)


def _start(rank: int, config: ModelConfig, context: int, options: Options) -> tuple[SpawnProcess, Connection]:
    """A rank's process, and the pipe to it."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_follow, args=(rank, theirs, config, context, options), name=f"rank-{rank}")
    process.start()
    theirs.close()
    return process, ours


def _watch(process: SpawnProcess, on_lost: Callable[[str], None]) -> None:
    process.join()
    if process.exitcode:
        on_lost(f"{process.name} has ended with status {process.exitcode}")


def _follow(rank: int, link: Connection, config: ModelConfig, context: int, options: Options) -> None:
    """What the process of a rank does: load its share, and run the steps that rank 0 leads."""
    Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(format=f"%(asctime)s %(levelname)s rank {rank}: %(message)s", stream=sys.stderr)
    try:
        group = join(rank, options.ranks, (link,), device_of(options, Group(rank, options.ranks)))
        sampler = Sampler(())  # rank 0 samples
        loaded = open_runner(options.model, config, options, context, sampler, lambda done, total: None, group)
        loaded.runner.follow()
    except EngineError as error:
        logging.error("%s", error.message)
        sys.exit(1)
    leave(group)


def _end_with_parent() -> None:
    """A parent that was killed tells nobody, and this rank may be within native code."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
