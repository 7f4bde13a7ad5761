"""Another way counts only where it runs and is right, and the fastest stays chosen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.kernels import choice


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> dict[Callable[[], Tensor], float]:
    """What each way is said to take, in ms; nothing is chosen yet."""
    said: dict[Callable[[], Tensor], float] = {}
    monkeypatch.setattr(choice, "CHOSEN", {})
    monkeypatch.setattr(choice, "_time_ms", said.__getitem__)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return said


def ours() -> Tensor:
    return torch.ones(3)


def equal() -> Tensor:
    return torch.ones(3) + 1e-6


def wrong() -> Tensor:
    return torch.tensor([1.0, 1.0, float("nan")])


def absent() -> Tensor:
    raise ImportError("not installed")


def test_the_fastest_right_way_is_chosen_once(times: dict[Callable[[], Tensor], float]) -> None:
    times.update({ours: 2.0, equal: 1.0, wrong: 0.1})
    ways = {"ours": ours, "wrong": wrong, "absent": absent, "equal": equal}
    assert choice.fastest("q", ways) == "equal"
    times[equal] = 3.0
    assert choice.fastest("q", ways) == "equal"
    assert choice.fastest("another", ways) == "ours"


def test_nothing_is_measured_or_kept_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch, times: dict[Callable[[], Tensor], float]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert choice.fastest("q", {"ours": ours, "equal": equal}) == "ours"
    assert not choice.CHOSEN
