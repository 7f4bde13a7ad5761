"""The model files that are compared: the same model in other formats, and harmed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.lib.local_engines import KIT, make

DERIVE_LIMIT_S = 300.0
BASELINE = "f16"
FORMATS = ("q4_1", "q8_0")
"""The model is packaged in Q4_1, so that F16 holds the very same values: no two formats can differ by less."""
LEVELS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True)
class Case:
    """One candidate: a format of the model, with noise as a share of each matrix's standard deviation."""

    precision: str
    noise: float = 0.0

    @property
    def name(self) -> str:
        """For the table."""
        return (
            f"{self.precision.upper()}, {self.noise:.1%} noise" if self.noise else f"{self.precision.upper()} unharmed"
        )

    @contextmanager
    def file(self, folder: Path) -> Iterator[Path]:
        """The GGUF file; a harmed one is made in ``folder``, and deleted after the block. Raises ``NotMade``."""
        if not self.noise:
            yield Path(make("model", "--precision", self.precision))
            return
        source, target = make("model", "--precision", BASELINE), folder / f"noise-{self.noise:g}.gguf"
        program = KIT / "engine_kit" / "precision.py"
        command = [sys.executable, str(program), source, str(target), self.precision, str(self.noise)]
        try:
            subprocess.run(command, check=True, timeout=DERIVE_LIMIT_S)
            yield target
        finally:
            target.unlink(missing_ok=True)
