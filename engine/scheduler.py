"""Which sequences run in the next step, and how much of each. It holds no tensors and reads no clock.

The order is fixed when a sequence arrives: its number, plus ``OVERTAKING`` for each level of priority. So one of a
worse level is overtaken by so many later ones and no more: nobody starves. The first in that order always gets what it
needs, and loses it to nobody.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from engine.block_manager import BlockManager
from engine.errors import ContextExceeded
from engine.request import Finish, Plan, Result, Row, Sequence, TokenLogprobs

OVERTAKING = 256
RECOVERY = 64
"""Steps without running out of memory after which a token budget that was cut doubles."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``max_sequences`` run at once, a step computes ``token_budget`` positions, a sequence has ``context`` tokens."""

    max_sequences: int
    token_budget: int
    context: int

    def __post_init__(self) -> None:
        if not 1 <= self.max_sequences <= self.token_budget:
            raise ValueError(f"{self.token_budget} tokens a step do not suffice for {self.max_sequences} sequences")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step brought a sequence, cut where its answer ends. ``finish`` is None while it goes on."""

    sequence: Sequence
    result: Result
    finish: Finish | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    drafted: int = 0
    """Drafts that were verified: all tokens but the first are accepted ones."""


class Scheduler:
    """Continuous batching: prompts are read in chunks beside the answers that go on, under one budget of tokens.

    ``eos`` are the tokens that end an answer. A sequence that is preempted loses its blocks, and computes its tokens
    again later, as far as they are not found in the prefix cache.
    """

    def __init__(self, blocks: BlockManager, limits: Limits, eos: Iterable[int] = ()) -> None:
        self.blocks = blocks
        self.limits = limits
        self.context = min(limits.context, blocks.blocks * blocks.block_size)
        self.budget = limits.token_budget
        """Positions a step may compute now: less than the limit after it was out of memory."""
        self.preemptions = 0
        self._eos = frozenset(eos)
        self._ranks: dict[int, int] = {}
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._arrived = 0
        self._calm = 0

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Those that have blocks, first one first."""
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Those that have none, first one first."""
        return tuple(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence. Raises ContextExceeded when its prompt leaves no room for a token of an answer."""
        if sequence.prompt_length + (not sequence.pools) > self.context:
            raise ContextExceeded(sequence.prompt_length, self.context)
        self._arrived += 1
        self._ranks[sequence.id] = self._arrived + OVERTAKING * sequence.priority
        insort(self._waiting, sequence, key=self._rank)

    def remove(self, sequence: Sequence) -> None:
        """Ends a sequence, wherever it is. Twice is once."""
        if self._ranks.pop(sequence.id, None) is not None:
            if sequence in self._running:
                self._running.remove(sequence)
                self.blocks.release(sequence)
            else:
                self._waiting.remove(sequence)
            sequence.drafts = []

    def decoding(self) -> list[Sequence]:
        """Those that get their next token in the next step: drafts for them can be verified there."""
        return [sequence for sequence in self._running if _left(sequence) == 1 and not sequence.pools]

    def plan(self) -> Plan:
        """What to compute next; it has rows whenever there are sequences. Every sequence has at most one row."""
        self._calm += 1
        if self._calm >= RECOVERY:
            self._calm, self.budget = 0, min(2 * self.budget, self.limits.token_budget)
        preempted: list[Sequence] = []
        self._admit(preempted)
        held = self._hold()
        self._grow(preempted)
        decoding = [sequence for sequence in self._running if _left(sequence) == 1]
        reading = [sequence for sequence in self._running if _left(sequence) > 1 and sequence not in held]
        rows = [Row(sequence, sequence.computed, 1 + len(sequence.drafts), True) for sequence in decoding]
        for sequence, count in self._shares(reading, self.budget - sum(row.count for row in rows)).items():
            rows.append(Row(sequence, sequence.computed, count, count == _left(sequence)))
        self.preemptions += len(preempted)
        return Plan(tuple(rows), tuple(preempted))

    def commit(self, plan: Plan, results: Iterable[Result]) -> list[Outcome]:
        """Takes in a step's results, one a row. Returns what became of each; those that ended have no blocks then."""
        outcomes = [self._advance(row, result) for row, result in zip(plan.rows, results, strict=True)]
        for outcome in outcomes:
            if outcome.finish is not None:
                self.remove(outcome.sequence)
        return outcomes

    def shrink(self, plan: Plan) -> Sequence | None:
        """A step was out of memory: later ones are half as large. Returns a sequence that does not fit even alone."""
        self._calm = 0
        if plan.tokens == 1:
            return plan.rows[0].sequence
        self.budget = max(1, min(self.budget, plan.tokens) // 2)
        return None

    def _advance(self, row: Row, result: Result) -> Outcome:
        sequence = row.sequence
        drafted, sequence.drafts = len(sequence.drafts), []
        if result.error is not None:
            return Outcome(sequence, result, Finish.ERROR)
        finish = Finish.STOP if row.samples and sequence.pools else None
        sequence.computed = row.start + row.count
        accepted = 0
        if row.samples and not sequence.pools:
            while finish is None and accepted < len(result.tokens):
                sequence.tokens.append(result.tokens[accepted])
                finish = self._finish(sequence)
                accepted += 1
            sequence.computed = len(sequence.tokens) - 1  # the newest is not in the cache, nor are refused drafts
        self.blocks.keep(sequence)
        return Outcome(sequence, result, finish, result.tokens[:accepted], result.logprobs[:accepted], drafted)

    def _finish(self, sequence: Sequence) -> Finish | None:
        sampling, token = sequence.sampling, sequence.tokens[-1]
        ends = token in sampling.stop_token_ids or (token in self._eos and not sampling.ignore_eos)
        if ends and sequence.generated > sampling.min_tokens:
            return Finish.STOP
        if sequence.generated >= sampling.max_tokens or len(sequence.tokens) >= self.context:
            return Finish.LENGTH
        return None

    def _rank(self, sequence: Sequence) -> int:
        return self._ranks[sequence.id]

    def _preempt(self, preempted: list[Sequence]) -> Sequence:
        sequence = self._running.pop()
        self.blocks.release(sequence)
        sequence.preemptions += 1
        insort(self._waiting, sequence, key=self._rank)
        preempted.append(sequence)
        return sequence

    def _admit(self, preempted: list[Sequence]) -> None:
        seats = min(self.limits.max_sequences, self.budget)
        while len(self._running) > seats:
            self._preempt(preempted)
        while self._waiting:
            first = self._waiting[0]
            # A block to grow for each that runs, or who is admitted now would be preempted soon.
            if len(self._running) < seats and self.blocks.begin(first, spare=len(self._running)):
                insort(self._running, self._waiting.pop(0), key=self._rank)
            elif self._running and self._rank(first) < self._rank(self._running[-1]):
                self._preempt(preempted)
            else:
                return

    def _hold(self) -> set[Sequence]:
        """Those whose next block another computes now: they take it over when it is there."""
        held, claims = set(), set()
        for sequence in self._running:
            claim = self.blocks.catch_up(sequence) if _left(sequence) > 1 else None
            if claim in claims:
                held.add(sequence)
            elif claim is not None:
                claims.add(claim)
        return held

    def _grow(self, preempted: list[Sequence]) -> None:
        """Finds room for those that get their next token and then, where it takes it from nobody, for their drafts."""
        for sequence in tuple(self._running):
            if _left(sequence) == 1 and sequence.blocks:
                while not self.blocks.extend(sequence, len(sequence.tokens)):
                    if self._preempt(preempted) is sequence:
                        break
        left = self.budget - len(self._running)
        for sequence in self._running:
            length = len(sequence.tokens)
            room = min(left, self.context - length - 1, sequence.sampling.max_tokens - sequence.generated - 1)
            del sequence.drafts[max(room, 0) if _left(sequence) == 1 else 0 :]
            if not self.blocks.extend(sequence, length + len(sequence.drafts)):
                sequence.drafts = []
            left -= len(sequence.drafts)

    def _shares(self, reading: list[Sequence], left: int) -> dict[Sequence, int]:
        """How much of its prompt each reads: half is the first one's, the rest goes to who is done soonest."""
        shares: Counter[Sequence] = Counter()
        soonest = sorted(reading, key=lambda sequence: (sequence.priority, _left(sequence)))
        for place, sequence in enumerate([*reading[:1], *soonest]):
            count = min(_left(sequence) - shares[sequence], left if place else -(-left // 2))
            if count:
                shares[sequence] += count
                left -= count
        return shares


def _left(sequence: Sequence) -> int:
    """Accepted tokens that are not in the cache yet; 1 when the next token is due."""
    return len(sequence.tokens) - sequence.computed
