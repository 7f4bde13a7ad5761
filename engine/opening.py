"""Puts an engine together: a model's files, its text tools, a runner, and the loop over them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch

from engine import __version__
from engine.block_manager import BlockManager
from engine.config import read_config
from engine.detokenizer import Detokenizer
from engine.dialogue import Dialogue
from engine.engine import Engine
from engine.errors import BrokenModel
from engine.options import Options
from engine.protocol import Language
from engine.scheduler import Limits, Scheduler
from engine.server import Served
from engine.speculative import NgramProposer, Speculator
from engine.structured import Structures
from engine.tokenizer import Tokenizer

MOST_CONTEXT = 8192
"""Tokens of context that are given where nobody asks for more."""


def open_served(options: Options, progress: Callable[[float], None], on_broken: Callable[[], None]) -> Served:
    """The engine that ``options`` ask for; not started yet. Raises ``ModelError`` naming what is wrong."""
    path = options.model
    if not path.exists():
        raise BrokenModel(f"{path} does not exist")
    config = read_config(path)
    tokenizer = Tokenizer.open(path)
    structures = Structures(
        tokenizer.vocabulary, config.eos_ids, tokenizer.special, lambda text: tokenizer.encode(text, special=False)
    )
    context = min(options.context or MOST_CONTEXT, config.context)
    from engine.kv_cache import KVCache
    from engine.loader import open_weights
    from engine.models.parts import Parts
    from engine.models.registry import build
    from engine.parallel import Group
    from engine.quant import plain
    from engine.runner import Runner
    from engine.sampler import Sampler

    device = torch.device("cpu")
    weights = open_weights(path, config, lambda done, total: progress(done / total))
    model = build(Parts(config, weights, plain(torch.float32), torch.float32, device, Group()))
    blocks = options.blocks or 1024
    runner = Runner(
        model, KVCache(config, blocks, 16, torch.float32, device, Group()), Sampler(config.eos_ids, structures), device
    )
    budget = options.token_budget or 512
    limits = Limits(options.max_sequences, max(budget, options.max_sequences), context)
    scheduler = Scheduler(BlockManager(blocks, 16, options.prefix_cache), limits, config.eos_ids)
    speculator = Speculator(NgramProposer()) if options.speculative == "ngram" else None
    engine = Engine(
        runner,
        scheduler,
        lambda sequence: Detokenizer(tokenizer),
        speculator,
        queue=options.queue,
        step_limit_s=options.step_limit_s,
        on_broken=on_broken,
    )
    name = options.served_name or path.resolve().name.removesuffix(".gguf")
    context = scheduler.context
    card = {
        "id": name,
        "object": "model",
        "created": int(path.stat().st_mtime),
        "owned_by": "paceline",
        "precision": "fp32",
        "scheme": "fp32",
        "context": context,
        "max_model_len": context,
        "slots": options.max_sequences,
        "version": __version__,
        "digest": _digest(path),
        "device": str(device),
        "kv_cache": "fp32",
        "threads": torch.get_num_threads(),
    }
    says = f"{name} in fp32, context {context}, {blocks} cache blocks of 16"
    language = Language(tokenizer, Dialogue.open(path), structures, config.vocabulary, context, config.hidden)
    return Served(name, card, says, language, engine)


def _digest(path: Path) -> str:
    """A short name for a model's files, by their names and sizes and the configuration."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    listing = "".join(f"{file.name}:{file.stat().st_size};" for file in files)
    config = b"" if path.is_file() else (path / "config.json").read_bytes()
    return hashlib.sha256(config + listing.encode()).hexdigest()[:16]
