"""Two ranks that hold half of each layer say the same tokens as one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.parallel import Group, join, leave
from engine.request import Sequence
from tests.engine.conftest import ARCHITECTURES, save
from tests.engine.driving import CPU, generate, own_blocks, runner, sequence

PROMPTS = [list(range(3, 40)), [9, 8, 7, 300]]


def _sequences() -> list[Sequence]:
    sequences = [sequence(index, prompt) for index, prompt in enumerate(PROMPTS)]
    own_blocks(sequences, 24)
    return sequences


def _rank(rank: int, links: tuple[Connection, Connection], folders: list[Path], answers: Path) -> None:
    torch.set_num_threads(1)
    group = join(rank, 2, (links[rank],), CPU, timeout_s=60)
    assert group.agree(5 - rank, min) == 4
    said = []
    for folder in folders:
        engine = runner(folder, group=group)
        if rank:
            engine.follow()
        else:
            said.append(generate(engine, _sequences(), 24, most=16))
            engine.close()
    if not rank:
        torch.save(said, answers)
    leave(group)


def test_two_ranks_say_what_one_says(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folders = [tiny(architecture) for architecture in ARCHITECTURES]
    torch.multiprocessing.spawn(_rank, (multiprocessing.Pipe(), folders, tmp_path / "answers"), nprocs=2)
    assert torch.load(tmp_path / "answers") == [generate(runner(folder), _sequences(), 24) for folder in folders]


def test_heads_that_cannot_be_shared_out_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="3 key/value heads cannot be shared out among 2 ranks"):
        runner(save("llama", tmp_path, hidden_size=96, num_attention_heads=6, num_key_value_heads=3), group=Group(0, 2))
