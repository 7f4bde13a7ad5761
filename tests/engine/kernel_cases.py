"""Every kernel beside its reference, on any device and in any dtype: small in the interpreter, larger on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from engine.kernels import activation, cache, decode, matmul, norm, prefill, rope, sampling
from engine.kernels.paged import Past
from engine.packed import compress

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Place:
    """Where a case runs, and in which dtype."""

    dtype: torch.dtype
    device: str = "cpu"

    def random(self, *shape: int) -> Tensor:
        """Normal numbers, the same each time on a CPU, so that every case sees what it saw before."""
        made = torch.Generator().manual_seed(sum(shape))
        return torch.randn(shape, generator=made).to(self.dtype).to(self.device)

    def whole(self, *values: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Integers on the device."""
        return torch.tensor(values, dtype=dtype, device=self.device)


def close(found: Tensor, right: Tensor, slack: float = 1.0) -> None:
    """Equal in shape and dtype, and in value up to the dtype's rounding."""
    assert found.dtype == right.dtype
    tolerance = TOLERANCE.get(right.dtype, 2e-5) * slack
    torch.testing.assert_close(found.float(), right.float(), rtol=tolerance, atol=tolerance)


def check_norm(at: Place, rows: int, size: int) -> None:
    x, residual, weight = at.random(rows, size), at.random(rows + 1, size)[1:], at.random(size)
    for added in (None, residual):
        found, right = (f(x, weight, 1e-6, added) for f in (norm.rms_norm, norm.reference))
        close(found[0], right[0])
        close(found[1], right[1])


def check_head_norm(at: Place, size: int) -> None:
    heads = at.random(5, 7, size)[:, 2:5]
    close(norm.rms_norm(heads, at.random(size), 1e-6)[0], norm.reference(heads, at.random(size), 1e-6)[0])


def check_rope(at: Place, heads: int, kv_heads: int, size: int) -> None:
    found = at.random(4, heads + 2 * kv_heads, size)
    right = found.clone()
    angles = Place(torch.float32, at.device).random(20, size)
    positions = at.whole(3, 0, 19, 7, dtype=torch.int64)
    for turn, qkv in ((rope.rope, found), (rope.reference, right)):
        turn(qkv[:, :heads], qkv[:, heads : heads + kv_heads], angles, positions)
    close(found, right)


def check_gated(at: Place, rows: int, size: int) -> None:
    x = at.random(rows, 2 * size)
    for kind in ("silu", "gelu_tanh"):
        close(activation.gated(x, kind), activation.reference(x, kind))


def check_write(at: Place, heads: int, size: int, kept: torch.dtype | None = None) -> None:
    """``kept`` is the cache's dtype when it quantises. Half of the slots hold what nothing may touch."""
    qkv = at.random(4, 3 * heads, size)
    k, v = qkv[:, heads : 2 * heads], qkv[:, 2 * heads :]
    if kept == torch.float8_e4m3fn:  # exact there: rounding to fp8 is the device's, and the interpreter's is wrong
        k, v = (2 * x.clamp(-200, 200).to(kept).to(at.dtype) for x in (k, v))
        k[..., 0], v[..., 0] = 448, -448
    slots = at.whole(5, -1, 0, 11, dtype=torch.int64)
    stores = []
    for write in (cache.write_kv, cache.reference):
        both = [torch.ones((3, 4, heads, size), device=at.device).to(kept or at.dtype) for _ in range(2)]
        scales = [torch.ones((3, 4, heads), device=at.device) for _ in range(2)] if kept else [None, None]
        write(k, v, both[0], both[1], slots, scales[0], scales[1])
        stores.append([*both, *(scale for scale in scales if scale is not None)])
    for found, right in zip(*stores, strict=True):
        assert found.dtype == right.dtype
        torch.testing.assert_close(found.float(), right.float(), rtol=1e-6, atol=1.0 if kept == torch.int8 else 0.0)


@dataclass(frozen=True)
class Heads:
    """The shape of an attention: ``kept`` is the cache's dtype when it quantises."""

    heads: int
    kv_heads: int
    size: int
    window: int | None = None
    softcap: float | None = None
    kept: torch.dtype | None = None


def caches(
    at: Place, heads: Heads, blocks: int, block_size: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Keys and values of random numbers, and their scales."""
    shape = (blocks, block_size, heads.kv_heads, heads.size)
    keys, values = at.random(*shape), at.random(*shape).flip(0)
    if heads.kept is None:
        return keys, values, None, None
    (k, k_scale), (v, v_scale) = (compress(x, heads.kept) for x in (keys, values))
    return k, v, k_scale, v_scale


def tables(at: Place, sequences: int, width: int) -> Tensor:
    """Blocks in random order, shared by none."""
    made = torch.Generator().manual_seed(0)
    return torch.randperm(sequences * width, generator=made).view(sequences, width).int().to(at.device)


def past(at: Place, heads: Heads, blocks: Tensor, lengths: tuple[int, ...], block_size: int = 16) -> Past:
    """Random keys and values in ``blocks``, seen as ``heads`` say."""
    k, v, k_scale, v_scale = caches(at, heads, blocks.numel(), block_size)
    return Past(k, v, blocks, at.whole(*lengths), heads.size**-0.5, heads.window, heads.softcap, k_scale, v_scale)


def check_decode(at: Place, heads: Heads, lengths: tuple[int, ...], block_size: int = 16) -> None:
    """Ragged lengths; a length of 0 is padding."""
    width = -(-max(lengths) // block_size)
    q = at.random(len(lengths), heads.heads + 2, heads.size)[:, 1:-1]
    seen = past(at, heads, tables(at, len(lengths), width), lengths, block_size)
    close(decode.paged_decode(q, seen), decode.reference(q, seen))


def check_prefill(
    at: Place, heads: Heads, rows: tuple[int, ...], lengths: tuple[int, ...], block_size: int = 16
) -> None:
    """Some sequences start behind a prefix, one that another has shares its blocks."""
    width = -(-max(lengths) // block_size)
    q = at.random(sum(rows), heads.heads + 2, heads.size)[:, 1:-1]
    owned = tables(at, len(lengths), width)
    owned[-1, 0] = owned[0, 0]
    starts, seen = at.whole(0, *accumulate(rows)), past(at, heads, owned, lengths, block_size)
    close(prefill.paged_prefill(q, starts, seen), prefill.reference(q, starts, seen))


def check_int8(at: Place, rows: int, inner: int, outer: int) -> None:
    x, bias = at.random(rows, inner), at.random(outer)
    weight = torch.randint(-127, 128, (outer, inner), dtype=torch.int8, device=at.device)
    scales = torch.rand(outer, device=at.device) / (64 * inner**0.5)
    for added in (None, bias):
        close(matmul.int8_linear(x, weight, scales, added), matmul.int8_reference(x, weight, scales, added), 4)


def check_int4(at: Place, rows: int, inner: int, outer: int, group: int) -> None:
    x, bias = at.random(rows, inner), at.random(outer)
    weight = matmul.pack(torch.randint(0, 16, (outer, inner), device=at.device))
    scales = torch.rand((outer, inner // group), device=at.device) / (4 * inner**0.5)
    minima = torch.randn((outer, inner // group), device=at.device) / inner**0.5
    for added in (None, bias):
        found, right = (f(x, weight, scales, minima, added) for f in (matmul.int4_linear, matmul.int4_reference))
        close(found, right, 4)


def check_survey(at: Place, size: int) -> None:
    """Rows that are plain, tied, masked for longer than a tile, poisoned in three ways."""
    logits = at.random(6, size)
    logits[1, [3, size - 1]] = 50.0
    logits[2, : size - 3] = float("-inf")
    logits[3, 5], logits[4, 5], logits[5] = float("nan"), float("inf"), float("-inf")
    (best, total), (right, sums) = sampling.survey(logits), sampling.reference(logits)
    assert best[:3].tolist() == right[:3].tolist()
    close(total[:3], sums[:3])
    assert not total[3:].isfinite().any()
