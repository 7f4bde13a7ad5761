"""Every kernel compiles for real GPUs, from bf16 to int8 caches, and fits in their shared memory; no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from engine.kernels import activation, cache, decode, launch, matmul, norm, prefill, rope, sampling
from tests.engine import kernel_cases as cases
from tests.engine.kernel_cases import Heads, Place

triton = pytest.importorskip("triton", reason="Triton is not made for this system")
pytestmark = [
    pytest.mark.skipif(launch.INTERPRETED, reason="with TRITON_INTERPRET=1 nothing is compiled"),
    pytest.mark.filterwarnings("default"),
]

SHARED_BYTES = {89: 99 * 1024, 90: 227 * 1024}
"""What a program may have, by compute capability: RTX 40 and L4; H100 and H200."""
TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int8: "*i8", torch.uint8: "*u8",
    torch.int32: "*i32", torch.int64: "*i64", torch.float8_e4m3fn: "*fp8e4nv",
}  # fmt: skip
MODULES: tuple[ModuleType, ...] = (activation, cache, decode, matmul, norm, prefill, rope, sampling)


class Compiled:
    """Compiles each launch for a GPU that is not here, instead of running it."""

    def __init__(self, capability: int) -> None:
        self.target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
        self.limit = SHARED_BYTES[capability]
        self.done: list[str] = []

    def launch(self, kernel: Any, *arguments: Any, **options: Any) -> None:
        """As Triton does: 1 is a constant, and sizes and addresses that 16 divides are known to be such."""
        signature, constants, facts = {}, {}, {}
        for index, (parameter, value) in enumerate(zip(kernel.params, arguments, strict=True)):
            if parameter.is_constexpr or (type(value) is int and value == 1):
                signature[parameter.name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[parameter.name], facts[(index,)] = TYPES[value.dtype], [["tt.divisibility", 16]]
            else:
                signature[parameter.name] = (
                    "fp32" if isinstance(value, float) else "i1" if value in (True, False) else "i32"
                )
                if type(value) is int and value % 16 == 0:
                    facts[(index,)] = [["tt.divisibility", 16]]
        source = triton.compiler.ASTSource(kernel, signature, constants, facts)
        made = triton.compile(source, target=self.target, options=options)
        assert made.asm["cubin"]
        assert made.metadata.shared <= self.limit
        self.done.append(kernel.fn.__name__)


@pytest.fixture(params=SHARED_BYTES)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Kernels are compiled for each kind of GPU when they would run; what they should have written stays undefined."""
    gpu = Compiled(request.param)

    class Recorder:
        def __init__(self, kernel: launch.Kernel) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *arguments, **options: gpu.launch(self.kernel.compiled(), *arguments, **options)

    for module in MODULES:
        monkeypatch.setattr(module, "runs", lambda x: True)
        for name, value in list(vars(module).items()):
            if isinstance(value, launch.Kernel) and name.startswith("_"):
                monkeypatch.setattr(module, name, Recorder(value))
    return gpu


@pytest.fixture(autouse=True)
def unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was computed, so nothing is compared."""
    monkeypatch.setattr(cases, "close", lambda *_: None)


def test_small_kernels_compile(compiled: Compiled) -> None:
    at = Place(torch.bfloat16)
    norm.rms_norm(at.random(4, 2048), at.random(2048), 1e-6, at.random(4, 2048))
    rope.rope(at.random(4, 8, 128), at.random(4, 2, 128), at.random(20, 128).float(), at.whole(1, 2, 3, 4))
    activation.gated(at.random(4, 512), "silu")
    activation.gated(at.random(4, 512), "gelu_tanh")
    sampling.survey(at.random(2, 5000))
    for dtype in (None, torch.int8, torch.float8_e4m3fn):
        stores = [torch.zeros(3, 16, 2, 128).to(dtype or at.dtype) for _ in range(2)]
        scales = [None, None] if dtype is None else [torch.zeros(3, 16, 2) for _ in range(2)]
        cache.write_kv(at.random(2, 2, 128), at.random(2, 2, 128), *stores, at.whole(1, 2), *scales)
    assert {"_normalise", "_rotate", "_gate", "_survey", "_write"} == set(compiled.done)


@pytest.mark.parametrize(
    ("dtype", "heads"),
    [
        (torch.bfloat16, Heads(8, 2, 128)),
        (torch.float16, Heads(3, 1, 80, window=100, softcap=20.0)),
        (torch.float32, Heads(4, 2, 256)),
        (torch.bfloat16, Heads(8, 1, 256, kept=torch.int8)),
        (torch.bfloat16, Heads(8, 2, 128, kept=torch.float8_e4m3fn)),
    ],
    ids=str,
)
def test_attention_compiles_and_fits(compiled: Compiled, dtype: torch.dtype, heads: Heads) -> None:
    at = Place(dtype)
    cases.check_decode(at, heads, (20, 700))
    cases.check_prefill(at, heads, (20, 7), (40, 33))
    assert {"_share", "_join", "_tile"} == set(compiled.done)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_products_compile_and_fit(compiled: Compiled, dtype: torch.dtype) -> None:
    at = Place(dtype)
    for rows in (1, 100):
        cases.check_int8(at, rows, 2048, 70)
        cases.check_int4(at, rows, 2048, 70, 32)
        cases.check_int4(at, rows, 2048, 70, 128)
    assert {"_multiply", "_add"} == set(compiled.done)
