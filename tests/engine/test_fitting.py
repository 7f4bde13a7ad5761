"""The precision that is asked for, or that fits, and a card that says what is true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from engine.config import read_config
from engine.errors import UnsupportedModel
from engine.fitting import Loaded, open_runner
from engine.options import Options
from engine.sampler import Sampler
from tests.engine.driving import generate, own_blocks, sequence


def load(path: Path, precision: str, kv: str = "auto") -> Loaded:
    options = Options(path, precision=precision, kv_precision=kv, device="cpu", max_sequences=4)
    return open_runner(path, read_config(path), options, 128, Sampler(()), lambda done, total: None)


@pytest.mark.parametrize("kv", ["auto", "int8"])
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_each_precision_goes_on_as_fp32_does(tiny: Callable[[str], Path], precision: str, kv: str) -> None:
    first = []
    for loaded in (load(tiny("llama"), "fp32"), load(tiny("llama"), precision, kv)):
        sequences = [sequence(number, list(range(3 + number, 40 + 3 * number))) for number in range(8)]
        own_blocks(sequences, 1)
        first.append([token for tokens in generate(loaded.runner, sequences, 1) for token in tokens])
        assert loaded.blocks * loaded.block_size >= 128
    assert loaded.precision == precision
    assert loaded.scheme.startswith(f"{precision}:")
    assert loaded.kv_precision == kv or kv == "auto"
    assert sum(one == other for one, other in zip(*first, strict=True)) >= 4  # of 8; by chance, none of 512 tokens


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
