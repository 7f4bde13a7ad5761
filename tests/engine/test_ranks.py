"""Tensor parallelism as users start it: what two processes answer, and that none of them outlives the other."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from conftest import save
from engines.processes import runs, wait_gone
from safetensors.torch import load_file, save_file
from serving import LIMIT_S, NAME, Served, serving, start

from engine.cli import BROKEN
from engine.errors import UnsupportedModel
from engine.fitting import device_of
from engine.options import Options
from engine.parallel import Group

OPTIONS = ("--device", "cpu", "--precision", "fp32", "--context", "256", "--speculative", "off")
TWO = (*OPTIONS, "--tensor-parallel", "2")
ASKED: dict[str, Any] = {"model": NAME, "temperature": 0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def talking(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a real tokenizer."""
    folder = save("llama", tmp_path_factory.mktemp("talking"), vocab_size=49152)
    for file in smollm2.glob("*token*"):
        shutil.copy(file, folder)
    return folder


def left(session: int) -> list[psutil.Process]:
    """The processes of a session that run."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == session and runs(process.pid):
                found.append(process)
    return found


def nothing_is_left(session: int) -> None:
    wait_gone([process.pid for process in left(session)], LIMIT_S)


def follower(served: Served) -> psutil.Process:
    (found,) = (each for each in left(served.process.pid) if "spawn_main" in " ".join(each.cmdline()))
    return found


def texts(served: Served) -> list[str]:
    answer = served.post("/v1/completions", {**ASKED, "prompt": ["The sea is wide", "One, two,", "x"]})
    return [choice["text"] for choice in answer.json()["choices"]]


def test_two_ranks_answer_what_one_answers(talking: Path, tmp_path: Path) -> None:
    with serving(talking, tmp_path / "one", *OPTIONS) as served:
        alone = texts(served)
    with serving(talking, tmp_path / "two", *TWO) as served:
        assert texts(served) == texts(served) == alone
        assert served.client.models.list().data[0].model_extra["ranks"] == 2  # type: ignore[index]
    assert len(set(alone)) == 3
    assert served.process.returncode == 0
    nothing_is_left(served.process.pid)
    assert len(served.log.read_text().splitlines()) == 1


def test_a_signal_to_all_lets_an_answer_end_first(talking: Path, tmp_path: Path) -> None:
    body = {**ASKED, "prompt": "The sea", "max_tokens": 200, "stream": True}
    with serving(talking, tmp_path / "log", *TWO) as served:
        with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=LIMIT_S) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.killpg(served.process.pid, signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert served.process.wait(LIMIT_S) == 0
    nothing_is_left(served.process.pid)
    assert "Traceback" not in served.log.read_text()


def test_an_engine_that_loses_a_rank_ends_broken(talking: Path, tmp_path: Path) -> None:
    with serving(talking, tmp_path / "log", *TWO) as served:
        follower(served).kill()
        assert served.process.wait(LIMIT_S) == BROKEN
    nothing_is_left(served.process.pid)
    assert "rank-1 has ended with status -9" in served.log.read_text()


def test_a_rank_that_hangs_does_not_outlive_an_engine_that_is_told_to_end(talking: Path, tmp_path: Path) -> None:
    with serving(talking, tmp_path / "log", *TWO) as served:
        follower(served).suspend()
        served.process.terminate()
        assert served.process.wait(LIMIT_S) == 0
    nothing_is_left(served.process.pid)


def test_ranks_end_with_an_engine_that_is_killed(talking: Path, tmp_path: Path) -> None:
    with serving(talking, tmp_path / "log", *TWO) as served:
        served.process.kill()
    nothing_is_left(served.process.pid)


def test_a_model_that_cannot_be_read_leaves_nothing_behind(talking: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(talking, broken)
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, broken / "model.safetensors")
    process, _ = start(broken, tmp_path / "log", *TWO)
    assert process.wait(LIMIT_S) == 1
    nothing_is_left(process.pid)
    assert "cannot be served: " in (tmp_path / "log").read_text()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_heads_that_cannot_be_shared_out_are_refused_in_one_line(smollm2: Path, tmp_path: Path) -> None:
    process, _ = start(smollm2, tmp_path / "log", *TWO)
    assert process.wait(LIMIT_S) == 1
    nothing_is_left(process.pid)
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert "9 heads cannot be shared out among 2 ranks" in line


@pytest.mark.parametrize(
    ("device", "gpus", "says"),
    [("cuda", 1, "3 ranks need a GPU each; there are 1"), ("cuda:1", 8, "3 ranks do not run on cuda:1")],
)
def test_ranks_without_a_gpu_each_are_refused(
    monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, says: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(UnsupportedModel, match=says):
        device_of(Options(Path(), device=device), Group(size=3))


@pytest.mark.parametrize("asked", ["cuda", None])
def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    options = Options(Path(), device=asked)
    assert [str(device_of(options, Group(rank, 2))) for rank in range(2)] == ["cuda:0", "cuda:1"]
