"""Drafts by a smaller model of the same vocabulary: it says greedily how sequences go on, with a cache of its own."""

from __future__ import annotations

from dataclasses import dataclass

from engine.block_manager import BlockManager
from engine.errors import OutOfMemory
from engine.request import Plan, Row, Sampling, Sequence
from engine.runner import Runner


@dataclass(slots=True)
class _Shadow:
    """A sequence as the small model knows it; ``agreed`` of its tokens are the sequence's own, the rest were drafts."""

    sequence: Sequence
    agreed: int = 0


class DraftModel:
    """Proposes what ``runner``'s model would say. ``blocks`` are of its own cache, ``context`` its positions in tokens.

    In one call it reads at most ``budget`` tokens at a time and only once of each prompt: a sequence that it has not
    yet read whole gets no drafts, nor does one for which its cache or its context has no room.
    """

    def __init__(self, runner: Runner, blocks: BlockManager, context: int, budget: int = 512) -> None:
        self._runner, self._blocks = runner, blocks
        self._context, self._budget = context, budget
        self._shadows: dict[int, _Shadow] = {}

    def propose(self, sequences: list[Sequence], most: list[int]) -> None:
        """Sets the ``drafts`` of each sequence, at most so many."""
        wanted = [
            (sequence, shadow, count)
            for sequence, count in zip(sequences, most, strict=True)
            if (shadow := self._catch_up(sequence, count)) is not None
        ]
        for sequence in sequences:
            sequence.drafts = []
        self._step([shadow.sequence for _, shadow, _ in wanted])
        caught_up = [each for each in wanted if len(each[1].sequence.tokens) > len(each[0].tokens)]
        for done in range(1, max((count for *_, count in caught_up), default=0)):
            self._step([shadow.sequence for _, shadow, count in caught_up if count > done])
        for sequence, shadow, count in caught_up:
            sequence.drafts = shadow.sequence.tokens[len(sequence.tokens) :][:count]

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        shadow = self._shadows.pop(sequence.id, None)
        if shadow is not None:
            self._blocks.release(shadow.sequence)

    def _catch_up(self, sequence: Sequence, count: int) -> _Shadow | None:
        """The sequence's shadow with its tokens instead of refused drafts, and room for so many more; None without."""
        tokens = sequence.tokens
        if count < 1 or len(tokens) + count > self._context:
            return None
        shadow = self._shadows.get(sequence.id)
        if shadow is None:
            greedy = Sampling(sequence.sampling.max_tokens, temperature=0.0)
            own = Sequence(sequence.id, len(tokens), list(tokens), greedy)
            if not self._blocks.begin(own):
                return None
            shadow = self._shadows[sequence.id] = _Shadow(own)
        own = shadow.sequence
        same = shadow.agreed
        while same < min(len(tokens), len(own.tokens)) and tokens[same] == own.tokens[same]:
            same += 1
        own.tokens[shadow.agreed :] = tokens[shadow.agreed :]
        own.computed = min(own.computed, same, len(tokens) - 1)
        shadow.agreed = len(tokens)
        return shadow if self._blocks.extend(own, len(tokens) + count) else None

    def _step(self, shadows: list[Sequence]) -> None:
        """Read what is new of each, within the budget, and add a token to those that are read whole."""
        rows, left = [], self._budget
        for shadow in shadows:
            missing = len(shadow.tokens) - shadow.computed
            count = min(missing, left)
            if count:
                rows.append(Row(shadow, shadow.computed, count, samples=count == missing))
                left -= count
        if not rows:
            return
        try:
            results = self._runner.start(Plan(tuple(rows))).result()
        except OutOfMemory:
            return  # drafts are a convenience: without them the step goes on as ever
        for row, result in zip(rows, results, strict=True):
            row.sequence.computed += row.count
            row.sequence.tokens.extend(result.tokens)
