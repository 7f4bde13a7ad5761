"""Deterministic prompts of a wanted length: ordinary text in many languages and code, from a seed.

The same seed and length give the same prompt on every machine and Python. The real token count is the engine's to
say: lengths here are aimed at through bytes per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from measure.passages import CODE, ENGLISH, LATIN, NAMES, OPENINGS, OTHER_SCRIPTS, PLACES

BYTES_PER_TOKEN = 3.5
"""A start value for this mixture: 3 for small vocabularies, 4 for large ones."""

SEEDS_APART = len(OPENINGS)
"""So many seeds in a row give prompts that differ from their first byte on, hence from their first token on."""

_PREFIX_SEED = 0

_MIXTURE = (ENGLISH, LATIN, CODE, ENGLISH, OTHER_SCRIPTS, LATIN, ENGLISH, CODE)
"""The kind of each passage by its place, so that prompts of one length have about the same number of tokens."""


def prompt(tokens: int, seed: int, bytes_per_token: float = BYTES_PER_TOKEN) -> str:
    """Return text of about ``tokens`` tokens, which is ``tokens * bytes_per_token`` bytes of UTF-8 at most.

    Any ``SEEDS_APART`` consecutive seeds give prompts without a common first token; all others differ in the page
    number that follows. Raises ``ValueError`` unless both lengths are positive.
    """
    if tokens < 1 or bytes_per_token <= 0:
        raise ValueError("a prompt has at least one token, and a token at least some of a byte")
    size = max(1, int(tokens * bytes_per_token))
    parts: list[str] = []
    written = 0
    for part in _passages(seed):
        parts.append(part)
        written += len(part.encode())
        if written >= size:
            break
    return "".join(parts).encode()[:size].decode(errors="ignore")


def prompt_after(prefix_tokens: int, tokens: int, seed: int, bytes_per_token: float = BYTES_PER_TOKEN) -> str:
    """Return a prompt of about ``tokens`` tokens whose first ``prefix_tokens`` are the same for all seeds.

    Raises ``ValueError`` unless ``prefix_tokens`` is positive and less than ``tokens``.
    """
    prefix = prompt(prefix_tokens, _PREFIX_SEED, bytes_per_token)
    return f"{prefix} {prompt(tokens - prefix_tokens, seed, bytes_per_token)}"


def _passages(seed: int) -> Iterator[str]:
    # Random.random() is the one method whose sequence Python promises to keep.
    random = Random(seed)
    yield f"{OPENINGS[seed % len(OPENINGS)]}, page {seed}: "
    decks: dict[tuple[str, ...], list[str]] = {}
    place = 0
    while True:
        kind = _MIXTURE[place % len(_MIXTURE)]
        deck = decks.setdefault(kind, [])
        if not deck:
            deck.extend(kind)
        passage = deck.pop(int(random.random() * len(deck)))
        yield passage.format(
            name=_choose(NAMES, random), place=_choose(PLACES, random), number=2 + int(random.random() * 97)
        )
        yield " "
        place += 1


def _choose(words: Sequence[str], random: Random) -> str:
    return words[int(random.random() * len(words))]
