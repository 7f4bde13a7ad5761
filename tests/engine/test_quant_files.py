"""Files that GPTQ or AWQ quantised hold the numbers that they say, and the engine computes with just those."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from driving import CPU, generate, own_blocks, runner, sequence
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import read_config
from engine.kv_cache import KVCache
from engine.loader import open_weights
from engine.models.parts import Parts
from engine.models.registry import build
from engine.packed import Grouped
from engine.parallel import Group
from engine.quant import choose
from engine.quant_files import weight_of
from engine.runner import Runner
from engine.sampler import Sampler

AWQ_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]


def _words(numbers: NDArray[Any], bits: int, places: list[int]) -> Tensor:
    """``numbers`` [R, C] in int32 words along the last dimension; half byte i of a word holds column ``places[i]``."""
    per = 32 // bits
    words = np.zeros((numbers.shape[0], numbers.shape[1] // per), np.uint32)
    for column in range(words.shape[1]):
        for place, taken in enumerate(places):
            words[:, column] |= numbers[:, column * per + taken].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(words.view(np.int32).copy())


def _quantised(
    weight: Tensor, method: str, bits: int, group: int, mixed: bool, random: Any
) -> tuple[dict[str, Tensor], Tensor]:
    """What a file holds of a weight [N, K], and the weight that it stands for, each number by itself."""
    outputs, inputs = weight.shape
    count = inputs // group
    order = np.arange(inputs) // group
    if mixed:
        random.shuffle(order)
    scales = (random.uniform(0.5, 1.5, (count, outputs)) * float(weight.std()) / 2 ** (bits - 2)).astype(np.float16)
    zeros = random.integers(1, 2**bits, (count, outputs))
    numbers = random.integers(0, 2**bits, (outputs, inputs))
    plain = np.empty((outputs, inputs), np.float32)
    for column in range(inputs):
        of = order[column]
        plain[:, column] = (numbers[:, column] - zeros[of]) * scales[of].astype(np.float32)
    inner = list(range(32 // bits))
    if method == "awq":
        packed = {"qweight": _words(numbers.T, bits, AWQ_COLUMNS), "qzeros": _words(zeros, bits, AWQ_COLUMNS)}
    else:
        packed = {
            "qweight": _words(numbers, bits, inner).t().contiguous(),
            "qzeros": _words(zeros - 1, bits, inner),
            "g_idx": torch.from_numpy(order.astype(np.int32)),
        }
    return {**packed, "scales": torch.from_numpy(scales)}, torch.from_numpy(plain)


@pytest.fixture
def folders(tiny: Callable[[str], Path], tmp_path: Path) -> Callable[[str, int, bool], tuple[Path, Path]]:
    """A folder quantised in a way, and one with the plain weights that it stands for."""

    def made(method: str, bits: int, mixed: bool) -> tuple[Path, Path]:
        random = np.random.default_rng(5)
        source = tiny("llama")
        tensors = load_file(source / "model.safetensors")
        packed, plain = {}, dict(tensors)
        for name, tensor in tensors.items():
            if "_proj.weight" not in name:
                packed[name] = tensor
                continue
            parts, plain[name] = _quantised(tensor, method, bits, 32, mixed, random)
            packed |= {name.replace("weight", part): held.contiguous() for part, held in parts.items()}
        facts = {"quant_method": method, "bits": bits, "group_size": 32, "desc_act": mixed}
        config = json.loads((source / "config.json").read_text())
        for folder, content, extra in (("packed", packed, {"quantization_config": facts}), ("plain", plain, {})):
            (tmp_path / folder).mkdir()
            save_file(content, tmp_path / folder / "model.safetensors")
            (tmp_path / folder / "config.json").write_text(json.dumps({**config, **extra}))
        return tmp_path / "packed", tmp_path / "plain"

    return made


KINDS = [("gptq", 4, False), ("gptq", 4, True), ("gptq", 8, False), ("awq", 4, False)]


@pytest.mark.parametrize(("method", "bits", "mixed"), KINDS)
def test_packed_weights_are_the_numbers_that_the_file_stands_for(
    folders: Callable[[str, int, bool], tuple[Path, Path]], method: str, bits: int, mixed: bool
) -> None:
    packed, plain = folders(method, bits, mixed)
    config = read_config(packed)
    weights, expected = open_weights(packed, config), load_file(plain / "model.safetensors")
    linears = [name.removesuffix(".weight") for name in expected if "_proj.weight" in name]
    assert len(linears) == 21
    for name in linears:
        found = weight_of(weights, name, config.quantization)
        assert isinstance(found, Grouped) is (bits == 4 and not mixed)
        dense = found.dense() if isinstance(found, Grouped) else found
        assert torch.allclose(dense, expected[f"{name}.weight"], rtol=1e-5, atol=1e-6)
    assert torch.equal(weight_of(weights, "model.norm", config.quantization), expected["model.norm.weight"])  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "bits", "mixed"), KINDS)
def test_a_packed_model_says_what_the_plain_one_says(
    folders: Callable[[str, int, bool], tuple[Path, Path]], method: str, bits: int, mixed: bool
) -> None:
    packed, plain = folders(method, bits, mixed)
    answers = []
    for folder in (packed, plain):
        asked = sequence(0, [5, 9, 40, 41])
        own_blocks([asked], 24)
        answers.append(generate(runner(folder), [asked], 20))
    assert answers[0] == answers[1]


def test_a_packed_model_is_computed_in_int4_without_being_quantised_anew(
    folders: Callable[[str, int, bool], tuple[Path, Path]],
) -> None:
    packed, _ = folders("gptq", 4, False)
    config = read_config(packed)
    scheme = choose("int4", [(64, 64)], CPU, 0.0)
    asked = [sequence(number, [5, 9, 40, 41]) for number in range(2)]
    own_blocks(asked, 12)
    model = build(Parts(config, open_weights(packed, config), scheme, torch.float32, CPU, Group()))
    int4 = Runner(model, KVCache(config, 8, 16, torch.float32, CPU, Group()), Sampler(()), CPU)
    first = generate(int4, asked[:1], 1)[0]
    assert first == generate(runner(packed), asked[1:], 1)[0]
