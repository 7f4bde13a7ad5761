"""The precision that is asked for, or that fits, and a card that says what is true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from torch.nn.functional import cosine_similarity

from engine.batch import assemble
from engine.config import read_config
from engine.errors import UnsupportedModel
from engine.fitting import Loaded, open_runner
from engine.options import Options
from engine.request import Plan
from engine.sampler import Sampler
from tests.engine.driving import CPU, own_blocks, row, sequence


def load(path: Path, precision: str, kv: str = "auto") -> Loaded:
    options = Options(path, precision=precision, kv_precision=kv, device="cpu", max_sequences=4, threads=1)
    return open_runner(path, read_config(path), options, 128, Sampler(()), lambda done, total: None)


@pytest.mark.parametrize("kv", ["auto", "int8", "fp8"])
@pytest.mark.parametrize(("precision", "likeness"), [("bf16", 0.99), ("int8", 0.99), ("int4", 0.7)])
def test_each_precision_is_like_fp32(tiny: Callable[[str], Path], precision: str, likeness: float, kv: str) -> None:
    logits = []
    for loaded in (load(tiny("llama"), "fp32"), load(tiny("llama"), precision, kv)):
        one = sequence(0, list(range(3, 60)))
        own_blocks([one], 1)
        batch = assemble(Plan((row(one, 100),)), loaded.block_size, CPU)
        with torch.inference_mode():
            logits.append(loaded.runner.model.logits(loaded.runner.model(batch, loaded.runner.cache)).float())
        assert loaded.blocks * loaded.block_size >= 128
    assert loaded.precision == precision
    assert loaded.scheme.startswith(f"{precision}:")
    assert loaded.kv_precision == kv or kv == "auto"
    if kv == "fp8":  # three bits of fraction: each key and value is off by up to a sixteenth
        likeness = min(likeness, 0.97)
    assert cosine_similarity(*logits).mean() > likeness  # of random weights: real ones bear int4 better


@pytest.mark.parametrize(("megabytes", "precision"), [(4000, "bf16"), (740, "int8"), (690, "int4")])
def test_auto_takes_the_first_that_fits(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, megabytes: int, precision: str
) -> None:
    class Memory:
        available = megabytes << 20

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    assert load(smollm2, "auto").precision == precision


def test_what_fits_in_no_precision_is_refused(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 600 << 20

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    with pytest.raises(UnsupportedModel, match="not even in int4"):
        load(smollm2, "auto")
