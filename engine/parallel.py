"""Tensor parallelism: ranks that hold a share of each layer and sum what they found.

Every rank runs the same steps. Rank 0 plans them and samples; the others follow it until it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed

from engine.errors import UnsupportedModel
from engine.packed import Grouped
from engine.request import Plan

Weight = TypeVar("Weight", Tensor, Grouped, Tensor | Grouped)


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a model. Alone, nothing is shared and nothing is sent."""

    rank: int = 0
    size: int = 1

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

    def lead(self, plan: Plan | None) -> None:
        """Rank 0 sends the others the plan to run with it; None ends them."""
        if self.size > 1:
            distributed.broadcast_object_list([plan], src=0)

    def follow(self) -> Iterator[Plan]:
        """The plans that rank 0 sends, until it ends."""
        while True:
            received: list[Plan | None] = [None]
            distributed.broadcast_object_list(received, src=0)
            if received[0] is None:
                return
            yield received[0]


def join(rank: int, size: int, address: str, timeout_s: float = 600.0) -> Group:
    """Meet the other ranks at ``address`` (``tcp://host:port`` or ``file://path``), within ``timeout_s``.

    NCCL where there are GPUs (one a rank), gloo elsewhere.
    """
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(
        backend, init_method=address, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )
    return Group(rank, size)


def leave(group: Group) -> None:
    """End what ``join`` began."""
    if group.size > 1:
        distributed.destroy_process_group()
