"""``python -m benchmarks.engine.gpu``: the engine on an NVIDIA GPU beside what the GPU can do, and beside vLLM.

Run it with the engine's environment; it takes some minutes and needs no network. The limits are measured here, too: how
fast a large tensor is copied, and how fast cuBLAS multiplies large bf16 matrices. Reading the weights and the cache
bounds decode, arithmetic bounds prefill. Without ``--model`` the whole model is a random Llama of 1.2 billion weights.
Where there is no GPU it says so, and measures nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from math import prod
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from engine.config import read_config
from engine.kernels import choice
from engine.kernels.decode import paged_decode, split_decode
from engine.kernels.matmul import int4_linear, int8_linear
from engine.kernels.paged import Past
from engine.kernels.prefill import paged_prefill, tiled_prefill
from engine.kv_cache import KVCache
from engine.loader import open_weights, shapes
from engine.models.parts import Parts
from engine.models.registry import build
from engine.parallel import Group
from engine.quant import plain
from engine.request import Plan, Row, Sampling, Sequence
from engine.runner import Runner
from engine.sampler import Sampler

CUDA = torch.device("cuda")
ROUNDS = 15
HEADS, KV_HEADS, SIZE, BLOCK = 32, 8, 128, 16
"""An attention of a model of 8 billion weights."""
INNER, OUTER = 4096, 14336
"""A linear of its MLP."""
PROMPT_TOKENS = 1024
OUTPUT_TOKENS = 128
TOGETHER = (1, 8, 32)

console = Console()


def timed_s(run: Callable[[], object]) -> float:
    """The median of some rounds, each with nothing of ``run`` left in the GPU's cache, after two that do not count."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device=CUDA)
    times = []
    for _ in range(2):
        run()
    for _ in range(ROUNDS):
        flush.zero_()
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        run()
        after.record()
        after.synchronize()
        times.append(float(before.elapsed_time(after)) / 1e3)
    return statistics.median(times)


def limits() -> tuple[float, float]:
    """(bytes a second, bf16 operations a second) that this GPU reaches."""
    source = torch.empty(2 << 30, dtype=torch.int8, device=CUDA)
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / timed_s(lambda: target.copy_(source))
    square = torch.randn((8192, 8192), dtype=torch.bfloat16, device=CUDA)
    return bandwidth, 2 * 8192**3 / timed_s(lambda: square @ square)


def past(sequences: int, length: int) -> Past:
    """Random keys and values, with tables in random order."""
    width = -(-length // BLOCK)
    shape = (sequences * width, BLOCK, KV_HEADS, SIZE)
    keys, values = (torch.randn(shape, dtype=torch.bfloat16, device=CUDA) for _ in range(2))
    tables = torch.randperm(len(keys), device=CUDA).int().view(sequences, width)
    lengths = torch.full((sequences,), length, dtype=torch.int32, device=CUDA)
    return Past(keys, values, tables, lengths, SIZE**-0.5)


def attention(bandwidth: float, compute: float) -> None:
    """Ours, and what was chosen, as parts of the limits."""
    table = Table("attention, bf16", "ours", "of the limit", "chosen", "its share of the limit", title="Kernels")
    for sequences, length in ((1, 4096), (8, 4096), (32, 4096), (128, 2048)):
        seen = past(sequences, length)
        q = torch.randn((sequences, HEADS, SIZE), dtype=torch.bfloat16, device=CUDA)
        ours, best = timed_s(partial(split_decode, q, None, seen)), timed_s(partial(paged_decode, q, seen))
        least = 4 * sequences * length * KV_HEADS * SIZE / bandwidth
        _row(table, f"decode, {sequences} of {length}", least, ours, best, "decode")
    for sequences, new, length in ((1, 2048, 2048), (4, 2048, 2048), (1, 8192, 8192), (4, 512, 4096)):
        seen = past(sequences, length)
        q = torch.randn((sequences * new, HEADS, SIZE), dtype=torch.bfloat16, device=CUDA)
        starts = torch.arange(sequences + 1, dtype=torch.int32, device=CUDA) * new
        ours, best = (timed_s(partial(f, q, starts, seen)) for f in (tiled_prefill, paged_prefill))
        pairs = sequences * (new * (length - new) + new * (new + 1) / 2)
        least = 4 * pairs * HEADS * SIZE / compute
        _row(table, f"prefill, {sequences} x {new} of {length}", least, ours, best, "prefill")
    console.print(table)


def _row(table: Table, name: str, least_s: float, ours_s: float, best_s: float, phase: str) -> None:
    ways = {way for question, way in choice.CHOSEN.items() if isinstance(question, tuple) and question[0] == phase}
    table.add_row(
        name, f"{ours_s * 1e6:.0f} us", f"{least_s / ours_s:.0%}", " ".join(sorted(ways)), f"{least_s / best_s:.0%}"
    )


def linears(bandwidth: float, compute: float) -> None:
    """Products with quantised weights beside bf16 ones; the limit is the later of weights' bytes and arithmetic."""
    table = Table(
        "rows", "bf16", "of the limit", "int8", "of the limit", "int4", "of the limit", title="Linear 4096 → 14336"
    )
    plain_weight = torch.randn((OUTER, INNER), dtype=torch.bfloat16, device=CUDA)
    whole = torch.randint(-127, 128, (OUTER, INNER), dtype=torch.int8, device=CUDA)
    packed = torch.randint(0, 256, (OUTER, INNER // 2), dtype=torch.uint8, device=CUDA)
    scales, minima = (torch.rand((OUTER, INNER // 128), device=CUDA) for _ in range(2))
    channels = torch.rand(OUTER, device=CUDA)
    for rows in (1, 8, 16, 64, 256, 2048):
        x = torch.randn((rows, INNER), dtype=torch.bfloat16, device=CUDA)
        ways: list[tuple[float, Callable[[], Tensor]]] = [
            (2.0, partial(torch.nn.functional.linear, x, plain_weight)),
            (1.0, partial(int8_linear, x, whole, channels)),
            (0.5 + 8 / 128, partial(int4_linear, x, packed, scales, minima)),
        ]
        cells = []
        for weight_bytes, run in ways:
            took = timed_s(run)
            least = max(weight_bytes * INNER * OUTER / bandwidth, 2 * rows * INNER * OUTER / compute)
            cells += [f"{took * 1e6:.0f} us", f"{least / took:.0%}"]
        table.add_row(str(rows), *cells)
    console.print(table)


def random_llama(folder: Path) -> Path:
    """A random Llama of 1.2 billion weights in bf16, as a Hugging Face folder without a tokeniser."""
    import transformers

    facts = transformers.LlamaConfig(
        vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True, dtype="bfloat16",
        eos_token_id=1, bos_token_id=0,
    )  # fmt: skip
    with torch.device(CUDA):
        made = transformers.LlamaForCausalLM(facts).bfloat16()
    made.save_pretrained(folder)
    return folder


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    """Random tokens, none the same."""
    made = torch.Generator().manual_seed(count)
    found: list[list[int]] = torch.randint(2, vocabulary, (count, PROMPT_TOKENS), generator=made).tolist()
    return found


def whole_model(path: Path, bandwidth: float, compute: float) -> None:
    """The engine's own runner, through its graphs, without HTTP; then vLLM on the same prompts."""
    config = read_config(path)
    group = Group()
    weights = open_weights(path, config)
    model = build(Parts(config, weights, plain(torch.bfloat16), torch.bfloat16, CUDA, group))
    blocks = max(TOGETHER) * -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK)
    runner = Runner(model, KVCache(config, blocks, BLOCK, torch.bfloat16, CUDA, group), Sampler(()), CUDA, group)
    embedding = config.vocabulary * config.hidden
    body = sum(map(prod, shapes(config).values())) - embedding * (1 if config.tied_embeddings else 2)
    fastest_prefill = compute / (2 * body)  # the head is for a prompt's last position only
    table = Table("", "prefill tokens/s", "of the limit", "decode tokens/s", "of the limit", title=f"{path.name}, bf16")
    for together in TOGETHER:
        for _ in range(2):  # the first compiles, chooses and captures
            prefill_s, decode_s = _run(runner, prompts(together, config.vocabulary))
        position = 4 * config.layers * config.kv_heads * config.head_size
        read = 2 * (body + embedding) + together * (PROMPT_TOKENS + OUTPUT_TOKENS / 2) * position
        speed = together * PROMPT_TOKENS / prefill_s
        written = together * (OUTPUT_TOKENS - 1) / decode_s
        shares = (f"{speed / fastest_prefill:.0%}", f"{written / (together * bandwidth / read):.0%}")
        table.add_row(f"engine, {together}", f"{speed:,.0f}", shares[0], f"{written:,.0f}", shares[1])
    del runner, model, weights
    torch.cuda.empty_cache()
    for together, speed, written in _vllm(path, config.vocabulary):
        table.add_row(f"vLLM, {together}", f"{speed:,.0f}", "", f"{written:,.0f}", "")
    console.print(table)


def _run(runner: Runner, texts: list[list[int]]) -> tuple[float, float]:
    """Seconds of the prompts, one after the other, and of all later steps together."""
    sampling = Sampling(OUTPUT_TOKENS, temperature=0.0)
    each = -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK)
    sequences = [
        Sequence(index, len(text), list(text), sampling, blocks=list(range(index * each, (index + 1) * each)))
        for index, text in enumerate(texts)
    ]

    def step(rows: list[Sequence]) -> None:
        plan = Plan(tuple(Row(s, s.computed, len(s.tokens) - s.computed, True) for s in rows))
        for s, result in zip(rows, runner.start(plan).result(), strict=True):
            s.computed = len(s.tokens)
            s.tokens += result.tokens

    torch.cuda.synchronize()
    began = time.perf_counter()
    for sequence in sequences:
        step([sequence])
    read = time.perf_counter()
    for _ in range(OUTPUT_TOKENS - 1):
        step(sequences)
    return read - began, time.perf_counter() - read


def _vllm(path: Path, vocabulary: int) -> list[tuple[int, float, float]]:
    """(requests together, prefill tokens/s, decode tokens/s) of vLLM, from runs of 1 and of all output tokens."""
    if find_spec("vllm") is None:
        console.print("vLLM is not installed here: the engine stands alone")
        return []
    from vllm import LLM, SamplingParams, TokensPrompt

    served = LLM(
        str(path), dtype="bfloat16", skip_tokenizer_init=True, max_model_len=2048, enable_prefix_caching=False,
        gpu_memory_utilization=0.6,
    )  # fmt: skip
    found = []
    for together in TOGETHER:
        asked = [TokensPrompt(prompt_token_ids=text) for text in prompts(together, vocabulary)]
        took = {}
        for tokens in (1, OUTPUT_TOKENS):
            settings = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
            for _ in range(2):
                began = time.perf_counter()
                served.generate(asked, settings, use_tqdm=False)
                took[tokens] = time.perf_counter() - began
        writing = took[OUTPUT_TOKENS] - took[1]
        found.append((together, together * PROMPT_TOKENS / took[1], together * (OUTPUT_TOKENS - 1) / writing))
    return found


def main() -> int:
    """Measure, print, and return 0; 0 as well where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Hugging Face folder; a random Llama otherwise")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: NOTHING was measured", file=sys.stderr)
        return 0
    bandwidth, compute = limits()
    name = torch.cuda.get_device_name()
    console.print(f"{name}: {bandwidth / 1e9:,.0f} GB/s copied, {compute / 1e12:,.0f} TFLOP/s in bf16 by cuBLAS")
    with torch.inference_mode():
        attention(bandwidth, compute)
        linears(bandwidth, compute)
    with tempfile.TemporaryDirectory() as folder:
        whole_model(chosen.model or random_llama(Path(folder)), bandwidth, compute)
    console.print({str(question): way for question, way in choice.CHOSEN.items()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
