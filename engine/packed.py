"""Weights as small numbers with scales, made of plain ones; keys and values likewise."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Listed
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.kernels.matmul import pack, unpack

GROUP = 32
"""Inputs that share a scale in int4, as in GGUF's Q4_0 and Q4_1."""
PART = 1 << 19
"""Numbers of a weight that are worked on at a time."""
TINY = 1e-30


@dataclass(frozen=True, slots=True)
class Channels:
    """``numbers`` int8 [N, K] times ``scales`` fp32 [N]."""

    numbers: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]."""
        return self.numbers.shape[0], self.numbers.shape[1]

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weights [N, K]."""
        pairs = _outputs(self.numbers, self.scales[:, None])
        return torch.cat([(numbers.float() * scales).to(dtype) for numbers, scales in pairs])


@dataclass(frozen=True, slots=True)
class Grouped:
    """Numbers of 0 to 15, two a byte in ``numbers`` [N, K / 2], times ``scales`` plus ``minima`` [N, K / group]."""

    numbers: Tensor
    scales: Tensor
    minima: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]."""
        return self.numbers.shape[0], 2 * self.numbers.shape[1]

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weights [N, K]."""
        return torch.cat([unpack(*each).to(dtype) for each in _outputs(self.numbers, self.scales, self.minima)])

    def to(self, device: torch.device) -> Grouped:
        """The same on a device."""
        return Grouped(self.numbers.to(device), self.scales.to(device), self.minima.to(device))

    def narrow(self, dimension: int, start: int, length: int) -> Grouped:
        """As ``Tensor.narrow``. Raises ``UnsupportedModel`` where a group would be cut."""
        group = self.shape[1] // self.scales.shape[1] if dimension else 1
        if start % group or length % group:
            raise UnsupportedModel(f"groups of {group} inputs cannot be shared out in parts of {length}")
        byte = 2 if dimension else 1
        numbers = self.numbers.narrow(dimension, start // byte, length // byte)
        first, count = start // group, length // group
        return Grouped(
            numbers, self.scales.narrow(dimension, first, count), self.minima.narrow(dimension, first, count)
        )


Weight = Tensor | Channels | Grouped
"""A weight as a scheme has it."""


def concatenate(weights: Listed[Tensor | Grouped]) -> Tensor | Grouped:
    """Weights [N_i, K] as one [sum of N_i, K]; plain ones if any is plain or they differ in their groups."""
    grouped = [weight for weight in weights if isinstance(weight, Grouped)]
    if len(grouped) == len(weights) and len({weight.scales.shape[1] for weight in grouped}) == 1:
        return Grouped(*(torch.cat([getattr(w, part) for w in grouped]) for part in ("numbers", "scales", "minima")))
    return torch.cat([weight.dense() if isinstance(weight, Grouped) else weight for weight in weights])


def parts(weight: Tensor, multiple: int = 1) -> tuple[Tensor, ...]:
    """Some outputs of a weight at a time, so many that what is made of them on the way stays within a CPU's caches."""
    return torch.split(weight, max(PART // weight.shape[1] // multiple, 1) * multiple)


def _outputs(weight: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """``parts`` of a weight with what belongs to the same outputs."""
    count = len(parts(weight)[0])
    return zip(*(torch.split(each, count) for each in (weight, *others)), strict=True)


def to_int8(weight: Tensor) -> Channels:
    """``weight`` [N, K] with a scale for each output; no weight is off by more than half its output's scale."""
    scales = (torch.maximum(weight.amax(1), -weight.amin(1)).float() / 127).clamp_(min=TINY)
    pairs = _outputs(weight, scales[:, None])
    return Channels(torch.cat([(part.float() / scale).round_().to(torch.int8) for part, scale in pairs]), scales)


def to_int4(weight: Tensor, group: int = GROUP) -> Grouped:
    """``weight`` [N, K] in groups of inputs, each from its least to its greatest or around 0, whichever is nearer.

    So weights that come from GGUF's Q4_1 or Q4_0 become the same numbers again. No weight is off by more than half its
    group's scale, up to rounding. Raises ``UnsupportedModel`` where K is no multiple of the group.
    """
    if weight.shape[1] % group:
        raise UnsupportedModel(f"int4 needs a multiple of {group} inputs, a linear of this model has {weight.shape[1]}")
    numbers, scales, minima = zip(
        *(_to_int4(part.float().view(len(part), -1, group)) for part in parts(weight)), strict=True
    )
    return Grouped(torch.cat(numbers), torch.cat(scales), torch.cat(minima))


def _to_int4(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The parts of ``Grouped`` for ``groups`` [N, groups, K / groups]."""
    least, most = groups.amin(2), groups.amax(2)
    extreme = torch.where(-least > most, least, most)
    scales, minima = torch.stack(((most - least) / 15, extreme / -8)), torch.stack((least, extreme))
    scales = torch.where(scales.abs() < TINY, 1.0, scales)
    numbers = ((groups - minima[..., None]) / scales[..., None]).round_().clamp_(0, 15)
    error = (numbers * scales[..., None] + minima[..., None]).sub_(groups).square_().sum(3)
    centred = error[1] < error[0]
    chosen = torch.where(centred[..., None], numbers[1], numbers[0]).flatten(1)
    return pack(chosen), torch.where(centred, scales[1], scales[0]), torch.where(centred, minima[1], minima[0])


def compress(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """``x`` [..., D] as int8 or fp8 with a scale fp32 [...]: for keys and values, one scale a slot and head.

    No number is off by more than half a scale in int8, and by 1/16 of itself (and scale/512) in fp8 (E4M3).
    """
    most = 127.0 if kind == torch.int8 else torch.finfo(kind).max
    scales = (x.abs().amax(-1).float() / most).clamp_(min=TINY)
    numbers = x.float() / scales[..., None]
    return (numbers.round_() if kind == torch.int8 else numbers.clamp_(-most, most)).to(kind), scales


def restore(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """What ``compress`` made of ``x``, [..., D] in ``dtype``."""
    return (numbers.float() * scales[..., None]).to(dtype)
