"""What the engine is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; None where the engine is to choose. ``context``, ``token_budget`` are in tokens."""

    model: Path
    served_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    precision: str = "auto"
    kv_precision: str = "auto"
    context: int | None = None
    max_sequences: int = 32
    token_budget: int | None = None
    blocks: int | None = None
    queue: int = 256
    threads: int | None = None
    device: str | None = None
    ranks: int = 1
    draft_model: Path | None = None
    speculative: str = "ngram"
    prefix_cache: bool = True
    step_limit_s: float = 120.0
