"""Triton, imported when a kernel is first launched, and the choice between a kernel and its reference."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Kernels run in Triton's interpreter, on any device: for tests."""
INSTALLED = find_spec("triton") is not None


def runs(x: Tensor) -> bool:
    """Whether kernels, rather than references, compute where ``x`` is."""
    return INSTALLED and (x.is_cuda or INTERPRETED)


def power_of_two(count: int) -> int:
    """The least power of two that is not below ``count``: Triton's tiles have no other sides."""
    return 1 << max(count - 1, 0).bit_length()


class Kernel:
    """A function in Triton's language; ``kernel[grid](...)`` launches it.

    Triton looks ``tl`` and the kernels that a kernel calls up in its module, so the first launch puts them there.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Any = None

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        launch: Callable[..., Any] = self.compiled()[grid]
        return launch

    def __call__(self, *_: object) -> Any:
        """For a kernel's code, which calls others as functions; Python itself cannot."""
        raise TypeError(f"{self._function.__name__} runs in kernels only")

    def compiled(self) -> Any:
        """What Triton makes of the function."""
        if self._compiled is None:
            import triton
            import triton.language

            self._compiled = triton.jit(self._function)
            names = self._function.__globals__
            names["tl"] = triton.language
            for name, value in list(names.items()):
                if isinstance(value, Kernel):
                    names[name] = value.compiled()
        return self._compiled


@Kernel
def dot(a, b, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """A product of tiles, summed in fp32. WIDE: operands are widened, since the interpreter gets bf16 wrong."""
    if WIDE:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")
