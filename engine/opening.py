"""Puts an engine together: a model's files, its text tools, a runner, and the loop over them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine import __version__
from engine.block_manager import BlockManager
from engine.config import read_config
from engine.detokenizer import Detokenizer
from engine.dialogue import Dialogue
from engine.draft import DraftModel
from engine.engine import Engine
from engine.errors import BrokenModel, UnsupportedModel
from engine.fitting import open_runner
from engine.options import Options
from engine.protocol import Language
from engine.ranks import start_ranks
from engine.sampler import Sampler
from engine.scheduler import Limits, Scheduler
from engine.server import Served
from engine.speculative import NgramProposer, Proposer, Speculator
from engine.structured import Structures
from engine.tokenizer import Tokenizer

MOST_CONTEXT = 8192
"""Tokens of context that are given where nobody asks for more."""


def open_served(
    options: Options,
    progress: Callable[[float], None],
    on_broken: Callable[[], None],
    on_lost: Callable[[str], None],
) -> Served:
    """The engine that ``options`` ask for; not started yet. Raises ``ModelError`` naming what is wrong.

    ``on_lost`` is as of ``start_ranks``, ``on_broken`` as of ``Engine``.
    """
    path = options.model
    if not path.exists():
        raise BrokenModel(f"{path} does not exist")
    config = read_config(path)
    if not config.eos_ids:
        raise BrokenModel(f"{path} names no token that ends an answer")
    tokenizer = Tokenizer.open(path)
    structures = Structures(
        tokenizer.vocabulary, config.eos_ids, tokenizer.special, lambda text: tokenizer.encode(text, special=False)
    )
    context = min(options.context or MOST_CONTEXT, config.context)
    sampler = Sampler(config.eos_ids, structures)
    group = start_ranks(config, context, options, on_lost)
    proposer = _proposer(options, tokenizer, context)  # a draft model takes its memory first
    loaded = open_runner(path, config, options, context, sampler, lambda done, total: progress(done / total), group)
    runner, blocks = loaded.runner, loaded.blocks
    budget = options.token_budget or 512
    limits = Limits(options.max_sequences, max(budget, options.max_sequences), context)
    scheduler = Scheduler(BlockManager(blocks, loaded.block_size, options.prefix_cache), limits, config.eos_ids)
    engine = Engine(
        runner,
        scheduler,
        lambda sequence: Detokenizer(tokenizer),
        Speculator(proposer) if proposer else None,
        queue=options.queue,
        step_limit_s=options.step_limit_s,
        on_broken=on_broken,
    )
    name = options.served_name or path.resolve().name.removesuffix(".gguf")
    context = scheduler.context
    dialogue = Dialogue.open(path)
    card = {
        "id": name,
        "object": "model",
        "created": int(path.stat().st_mtime),
        "owned_by": "paceline",
        "precision": loaded.precision,
        "scheme": loaded.scheme,
        "context": context,
        "max_model_len": context,
        "slots": options.max_sequences,
        "version": __version__,
        "digest": _digest(path),
        "device": str(runner.device),
        "kv_cache": loaded.kv_precision,
        "cache_block": loaded.block_size if options.prefix_cache else 0,
        "threads": loaded.threads,
        "ranks": group.size,
        "chat": dialogue.chats,
    }
    says = f"{name} in {loaded.scheme}; context {context}, {blocks} cache blocks of {loaded.block_size}"
    language = Language(tokenizer, dialogue, structures, config.vocabulary, context, config.hidden)
    return Served(name, card, says, language, engine)


def _proposer(options: Options, tokenizer: Tokenizer, context: int) -> Proposer | None:
    """Who guesses ahead. Raises ``ModelError`` for a draft model that is broken, or has other tokens."""
    path = options.draft_model
    if path is None:
        return NgramProposer() if options.speculative == "ngram" else None
    if not path.exists():
        raise BrokenModel(f"{path} does not exist")
    if Tokenizer.open(path).vocabulary != tokenizer.vocabulary:
        raise UnsupportedModel(f"{path} has other tokens than {options.model}, so it cannot guess for it")
    config = read_config(path)
    context = min(context, config.context)
    same = replace(options, kv_precision="auto", blocks=None)
    small = open_runner(path, config, same, context, Sampler(config.eos_ids), lambda done, total: None)
    return DraftModel(small.runner, BlockManager(small.blocks, small.block_size), context)


def _digest(path: Path) -> str:
    """A short name for a model's files, by their names and sizes and the configuration."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    listing = "".join(f"{file.name}:{file.stat().st_size};" for file in files)
    config = b"" if path.is_file() else (path / "config.json").read_bytes()
    return hashlib.sha256(config + listing.encode()).hexdigest()[:16]
