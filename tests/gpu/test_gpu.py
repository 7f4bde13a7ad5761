"""Every kernel in every dtype on a real GPU, other libraries' attention, and CUDA graphs of a whole model.

Run it with the engine's environment on a machine that has one: ``python -m pytest -q tests/gpu`` (some minutes, most of
them compiling). Anywhere else it says that there is no GPU, and skips.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from torch import Tensor

from engine.batch import Batch
from engine.config import read_config
from engine.graphs import DecodeGraphs, cuda_capture
from engine.kernels import choice, decode, launch
from engine.kernels.paged import Past
from engine.kv_cache import KVCache
from engine.loader import open_weights
from engine.models.parts import Parts
from engine.models.registry import build
from engine.parallel import Group
from engine.quant import plain
from engine.runner import Runner
from engine.sampler import Sampler
from tests.engine import kernel_cases as cases
from tests.engine.driving import generate, own_blocks, sequence
from tests.engine.kernel_cases import DTYPES, Heads, Place

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: NOTHING of the kernels was tested on one"),
    pytest.mark.skipif(launch.INTERPRETED, reason="TRITON_INTERPRET=1 is set: nothing would run on the GPU"),
    pytest.mark.filterwarnings("default"),
]
SIZES = (64, 80, 128, 256)


@pytest.fixture(params=DTYPES, ids=str)
def at(request: pytest.FixtureRequest) -> Place:
    """The GPU, in each dtype; fp32 products of the references in fp32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    return Place(request.param, "cuda")


@pytest.mark.parametrize("size", [64, 300, 2304, 8192])
def test_norms(at: Place, size: int) -> None:
    cases.check_norm(at, 700, size)
    cases.check_head_norm(at, 128)


@pytest.mark.parametrize("size", SIZES)
def test_rotary_positions(at: Place, size: int) -> None:
    cases.check_rope(at, 14, 2, size)
    cases.check_rope(at, 1, 1, size)


def test_gates(at: Place) -> None:
    cases.check_gated(at, 700, 5000)


@pytest.mark.parametrize("kept", [None, torch.int8, torch.float8_e4m3fn], ids=str)
def test_writes(at: Place, kept: torch.dtype | None) -> None:
    _needs_fp8(kept)
    cases.check_write(at, 8, 128, kept)
    cases.check_write(at, 3, 80, kept)


def test_the_pass_over_the_logits(at: Place) -> None:
    cases.check_survey(at, 151_936)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kept", [None, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("window", [None, 100])
def test_decode_attention(at: Place, size: int, kept: torch.dtype | None, window: int | None) -> None:
    _needs_fp8(kept)
    for heads, kv_heads, softcap in ((3, 1, None), (4, 4, 20.0), (14, 2, None)):
        cases.check_decode(at, Heads(heads, kv_heads, size, window, softcap, kept), (1, 0, 37, 700, 3000))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kept", [None, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("window", [None, 100])
def test_prefill_attention(at: Place, size: int, kept: torch.dtype | None, window: int | None) -> None:
    _needs_fp8(kept)
    for heads, kv_heads, softcap in ((3, 1, None), (4, 4, 20.0), (14, 2, None)):
        shape = Heads(heads, kv_heads, size, window, softcap, kept)
        cases.check_prefill(at, shape, (1, 300, 0, 37, 5), (900, 300, 0, 1000, 40))
    cases.check_prefill(at, Heads(8, 2, size, window), (4500, 70), (4500, 5000))


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 300])
def test_products_with_quantised_weights(at: Place, rows: int) -> None:
    cases.check_int8(at, rows, 4096, 1000)
    cases.check_int8(at, rows, 1100, 70)
    for group in (32, 128):
        cases.check_int4(at, rows, 4096, 1000, group)


@pytest.mark.parametrize("window", [None, 100])
def test_each_way_of_attention_that_runs_here_and_is_chosen_gives_what_ours_gives(window: int | None) -> None:
    at = Place(torch.bfloat16, "cuda")
    shape = Heads(8, 2, 128, window)
    for block_size in (16, 256):
        cases.check_decode(at, shape, (700, 1, 3000), block_size)
        cases.check_prefill(at, shape, (300, 1, 37), (700, 900, 37), block_size)
    asked = {
        question: way for question, way in choice.CHOSEN.items() if cast(Any, question)[0] in ("decode", "prefill")
    }
    print(asked)
    assert len(asked) >= 4


def test_a_replayed_step_gives_what_the_model_gives() -> None:
    """Attention, gates and products as a graph, for lengths that it was not captured with."""
    at = Place(torch.bfloat16, "cuda")
    shape = Heads(8, 2, 128)
    k, v, _, _ = cases.caches(at, shape, 400, 16)
    weight = at.random(1024, 64) / 8

    def model(batch: Batch, _: object) -> Tensor:
        q = (torch.sin(batch.tokens[:, None] + torch.arange(1024, device="cuda")) * 2).to(at.dtype).view(-1, 8, 128)
        return decode.paged_decode(q, Past(k, v, batch.tables, batch.lengths, 0.1)).flatten(1) @ weight

    graphs = DecodeGraphs(model, cast(Any, None), cuda_capture(torch.device("cuda")))
    with torch.inference_mode():
        for lengths in ((5, 90, 17), (300, 1, 2), (64,), (500, 40, 3)):
            count = len(lengths)
            tokens = at.whole(*range(count), dtype=torch.int64)
            starts = at.whole(0, *accumulate([1] * count))
            batch = Batch(tokens, tokens, tokens, starts, at.whole(*lengths), cases.tables(at, count, 40), None, (), 1)
            cases.close(graphs(batch), model(batch, None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_whole_model_says_on_the_gpu_what_it_says_on_the_cpu(
    tmp_path: Path, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """Greedy tokens of a small random Llama through the engine's runner: prompts in chunks, all of it through graphs.

    In bf16 only the first token is compared: later ones depend on the rounding of earlier ones.
    """
    facts = transformers.LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3, eos_token_id=1, bos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(facts).save_pretrained(tmp_path)
    config = read_config(tmp_path)
    said = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        group = Group()
        model = build(Parts(config, open_weights(tmp_path, config), plain(dtype), dtype, device, group))
        runner = Runner(model, KVCache(config, 96, 16, dtype, device, group), Sampler(()), device, group)
        sequences = [sequence(number, [3 + number, *range(10, 10 + 30 * number)]) for number in range(3)]
        own_blocks(sequences, 32, scattered=True)
        said.append(generate(runner, sequences, 32, most=20))
    assert "no CUDA graph" not in caplog.text
    count = 32 if dtype == torch.float32 else 1
    assert [tokens[:count] for tokens in said[0]] == [tokens[:count] for tokens in said[1]]


def _needs_fp8(kept: torch.dtype | None) -> None:
    if kept == torch.float8_e4m3fn and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8")
