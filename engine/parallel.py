"""Tensor parallelism: ranks that hold a share of each layer and sum what they found.

Every rank runs the same steps. Rank 0 plans them and samples; the others follow it until it ends. Plans and decisions
go through pipes: unlike a collective these wait without a limit, as an idle engine does, and tell of an end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TypeVar

import psutil
import torch
from torch import Tensor, distributed

from engine.errors import EngineStopped, UnsupportedModel
from engine.packed import Grouped
from engine.request import Plan

Weight = TypeVar("Weight", Tensor, Grouped, Tensor | Grouped)
Own = TypeVar("Own")
Decided = TypeVar("Decided")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a model. Alone, nothing is shared and nothing is sent.

    ``links`` are pipes: rank 0 has one to each of the others, in their order, and these have one to rank 0.
    """

    rank: int = 0
    size: int = 1
    links: tuple[Connection, ...] = ()

    def share(self, whole: int, what: str) -> int:
        """How many of ``whole`` a rank holds. Raises ``UnsupportedModel`` when they cannot be shared out evenly."""
        if whole % self.size:
            raise UnsupportedModel(f"{whole} {what} cannot be shared out among {self.size} ranks")
        return whole // self.size

    def shard(self, weight: Weight, dimension: int, what: str) -> Weight:
        """This rank's part of ``weight``."""
        if self.size == 1:
            return weight
        share = self.share(weight.shape[dimension], what)
        return weight.narrow(dimension, self.rank * share, share)

    def total(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, in place."""
        if self.size > 1:
            distributed.all_reduce(part)
        return part

    def agree(self, own: Own, decide: Callable[[list[Own]], Decided]) -> Decided:
        """What rank 0 decides, given each rank's ``own``; on every rank, once all have come this far.

        Raises ``EngineStopped`` when another rank has ended.
        """
        decided: Decided
        try:
            if self.rank:
                self.links[0].send(own)
                decided = self.links[0].recv()
            else:
                decided = decide([own, *(link.recv() for link in self.links)])
                self._send(decided)
        except (EOFError, OSError) as error:
            raise EngineStopped("another rank has ended") from error
        return decided

    def lead(self, plan: Plan) -> None:
        """Rank 0 sends the others the plan to run with it."""
        self._send(plan)

    def follow(self) -> Iterator[Plan]:
        """The plans that rank 0 sends, until it ends."""
        with suppress(EOFError):
            while (plan := self.links[0].recv()) is not None:
                yield plan

    def end(self) -> None:
        """Rank 0 ends the others, as far as they have not ended."""
        with suppress(OSError):
            self._send(None)

    def _send(self, value: object) -> None:
        for link in self.links:
            link.send(value)


def join(rank: int, size: int, links: tuple[Connection, ...], device: torch.device, timeout_s: float = 600.0) -> Group:
    """Meet the other ranks: by NCCL on GPUs (one a rank), by gloo on a CPU.

    Once all are there, meeting and each collective may take ``timeout_s``. Raises ``EngineStopped`` as ``agree`` does.
    """
    group = Group(rank, size, links)
    listening = None if rank else socket.create_server((LOOPBACK, 0))
    free: int = listening.getsockname()[1] if listening else 0
    port = group.agree(free, lambda ports: ports[0])
    timeout = timedelta(seconds=timeout_s)
    store = distributed.TCPStore(  # type: ignore[attr-defined]
        LOOPBACK, port, size, not rank, timeout, master_listen_fd=listening.detach() if listening else None
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        addresses = psutil.net_if_addrs().items()
        own = next(name for name, found in addresses if any(each.address == LOOPBACK for each in found))
        os.environ.setdefault("GLOO_SOCKET_IFNAME", own)  # else it listens where the machine's name leads
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return group


def leave(group: Group) -> None:
    """End what ``join`` began."""
    if group.size > 1:
        distributed.destroy_process_group()
