"""A model of hashes: the next token depends on every token before it, and it knows those only through the cache.

What it keeps for a position is a digest of all that the cache holds before, so one wrong block, or one that another
sequence wrote to, shows as wrong tokens from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b

from engine.errors import OutOfMemory, Poisoned
from engine.request import Plan, Result, Row, Sampling, Sequence

VOCABULARY = 30
EOS = 0
POISON = b"poison"


def entry(before: Iterable[bytes], token: int, position: int) -> bytes:
    """What the cache keeps for a token behind ``before``."""
    whole = b"".join(before)
    if POISON in whole:
        return POISON
    return blake2b(whole + b"%d at %d" % (token, position), digest_size=8).digest()


def choice(state: bytes, seed: int, position: int) -> int:
    """The token that is chosen for ``position``, behind the one whose entry is ``state``."""
    return blake2b(state + b"%d for %d" % (seed, position), digest_size=4).digest()[0] % VOCABULARY


def alone(prompt: list[int], sampling: Sampling, seed: int, context: int) -> list[int]:
    """The answer, made by one loop without blocks, batches or drafts; the token that ends it is its last."""
    tokens = list(prompt)
    entries: list[bytes] = []
    while True:
        for position in range(len(entries), len(tokens)):
            entries.append(entry(entries, tokens[position], position))
        tokens.append(choice(entries[-1], seed, len(tokens)))
        made = len(tokens) - len(prompt)
        ends = tokens[-1] in sampling.stop_token_ids or (tokens[-1] == EOS and not sampling.ignore_eos)
        if (ends and made > sampling.min_tokens) or made >= sampling.max_tokens or len(tokens) >= context:
            return tokens[len(prompt) :]


def sequence(number: int, prompt: list[int], sampling: Sampling | None = None, **more: object) -> Sequence:
    """A sequence whose seed is its number."""
    return Sequence(number, len(prompt), list(prompt), sampling or Sampling(max_tokens=8), seed=number, **more)  # type: ignore[arg-type]


@dataclass(slots=True)
class Pending:
    """A step that is computed when its result is asked for."""

    compute: Callable[[], list[Result]]

    def result(self) -> list[Result]:
        return self.compute()


class ToyRunner:
    """Computes plans. ``memory`` is the most positions a step may have; ``poisoned`` the ids whose numbers go wrong."""

    def __init__(self, blocks: int, block_size: int, memory: int | None = None) -> None:
        self.cache = [[b"never written"] * block_size for _ in range(blocks)]
        self.block_size = block_size
        self.memory = memory
        self.poisoned: set[int] = set()
        self.steps = 0
        self.positions = 0
        self.closed = False

    def start(self, plan: Plan) -> Pending:
        return Pending(lambda: self.run(plan))

    def close(self) -> None:
        self.closed = True

    def run(self, plan: Plan) -> list[Result]:
        """All rows are written before any is read, as on a device. Raises OutOfMemory, with half of them written."""
        self.steps += 1
        for row in plan.rows[: len(plan.rows) // 2] if self._too_large(plan) else plan.rows:
            self._write(row)
        if self._too_large(plan):
            raise OutOfMemory(f"no memory for {plan.tokens} positions")
        self.positions += plan.tokens
        return [self._result(row) for row in plan.rows]

    def _too_large(self, plan: Plan) -> bool:
        return self.memory is not None and plan.tokens > self.memory

    def _read(self, of: Sequence, positions: int) -> list[bytes]:
        size = self.block_size
        return [self.cache[of.blocks[at // size]][at % size] for at in range(positions)]

    def _write(self, row: Row) -> None:
        of = row.sequence
        tokens = of.tokens + of.drafts
        before = self._read(of, row.start)
        for position in range(row.start, row.start + row.count):
            state = POISON if of.id in self.poisoned else entry(before, tokens[position], position)
            self.cache[of.blocks[position // self.block_size]][position % self.block_size] = state
            before.append(state)

    def _result(self, row: Row) -> Result:
        of = row.sequence
        end = row.start + row.count
        states = self._read(of, end)
        if POISON in states:
            return Result(of, error=Poisoned("not finite"))
        if not row.samples:
            return Result(of)
        if of.pools:
            return Result(of, embedding=tuple(float(state[0]) for state in states))
        chosen: list[int] = []
        for position in range(end - len(of.drafts), end + 1):
            chosen.append(choice(states[position - 1], of.seed, position))
            if position == end or of.drafts[position - len(of.tokens)] != chosen[-1]:
                break
        return Result(of, tuple(chosen))
