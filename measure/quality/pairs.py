"""One prompt, answered twice: by the baseline and by the candidate; what the two replies have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from measure.quality.prompts import Prompt
from measure.quality.reply import Reply, Token
from measure.quality.text import common_prefix, edit_distance, loops, repetition, words

_HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}".encode()

FLOOR_NATS = 10.0
"""The most that one token can count: an engine names few rivals, and minus infinity would drown all else."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The places at which both models stood behind the same text: up to and with the first token that differs, or up to
    where two engines cut the same text into other tokens.

    ``loss`` is the sum over ``places`` of the baseline's log-probability of the token it wrote, less the candidate's,
    in nats.
    """

    places: int
    loss: float


@dataclass(frozen=True)
class Pair:
    """Both replies to one prompt, neither of them failed, and the measures that are taken of them."""

    prompt: Prompt
    baseline: Reply
    candidate: Reply

    @cached_property
    def baseline_problems(self) -> tuple[str, ...]:
        """What is wrong with the baseline's answer."""
        return self.prompt.problems(self.baseline)

    @cached_property
    def candidate_problems(self) -> tuple[str, ...]:
        """What is wrong with the candidate's."""
        return self.prompt.problems(self.candidate)

    @cached_property
    def same_words(self) -> int:
        """Words up to the first that differs."""
        return common_prefix(self._words[0], self._words[1])

    @property
    def same_characters(self) -> int:
        """Characters up to the first that differs."""
        return common_prefix(self.baseline.written, self.candidate.written)

    @property
    def diverged(self) -> bool:
        """Whether the two texts differ in a word."""
        return self._words[0] != self._words[1]

    @property
    def prefix_share(self) -> float:
        """``same_words`` as a share of the longer text: 1 for equal answers."""
        longest = max(map(len, self._words))
        return self.same_words / longest if longest else 1.0

    @cached_property
    def edit_share(self) -> float:
        """The edit distance in words as a share of the longer text: 0 for equal answers, 1 when nothing is left."""
        longest = max(map(len, self._words))
        return edit_distance(*self._words) / longest if longest else 0.0

    @cached_property
    def shared(self) -> Shared | None:
        """What the log-probabilities say where they can be compared; ``None`` without them."""
        mine, theirs = self.baseline.tokens, self.candidate.tokens
        if not mine or not theirs:
            return None
        loss, places = 0.0, 0
        for own, other in zip(mine, theirs, strict=False):
            is_same = own.piece == other.piece or (not places and own.piece.lstrip() == other.piece.lstrip())
            if not is_same and _spelled_otherwise(mine[places:], theirs[places:]):
                break  # from here on the places are not the same ones
            places += 1
            loss += min(FLOOR_NATS, own.logprob - (other.logprob if is_same else _logprob_of(own.piece, other)))
            if not is_same:
                break
        return Shared(places, loss) if places else None

    @cached_property
    def loops(self) -> tuple[bool, bool]:
        """Whether the baseline's and the candidate's answer go round in circles."""
        return loops(self.baseline.written), loops(self.candidate.written)

    @cached_property
    def repetitions(self) -> tuple[float, float]:
        """See ``text.repetition``, of both."""
        return repetition(self.baseline.written), repetition(self.candidate.written)

    @property
    def lengths(self) -> tuple[int, int]:
        """Words in both."""
        return len(self._words[0]), len(self._words[1])

    @cached_property
    def _words(self) -> tuple[list[str], list[str]]:
        return words(self.baseline.written), words(self.candidate.written)


def pair_up(
    prompts: Iterable[Prompt], baseline: Mapping[str, Reply], candidate: Mapping[str, Reply]
) -> tuple[Pair, ...]:
    """Return the pairs of the prompts that both have answered, in their order."""
    return tuple(
        Pair(prompt, baseline[prompt.id], candidate[prompt.id])
        for prompt in prompts
        if prompt.id in baseline
        and prompt.id in candidate
        and not baseline[prompt.id].failed
        and not candidate[prompt.id].failed
    )


def _spelled_otherwise(mine: Sequence[Token], theirs: Sequence[Token]) -> bool:
    """Whether two first tokens that differ say the same text: cut in another place, or half a character, which not
    every engine can spell."""
    pieces = mine[0].piece, theirs[0].piece
    if any(_HALF_CHARACTER in piece for piece in pieces):
        return True
    texts = [b"".join(token.piece for token in each) for each in (mine, theirs)]
    return common_prefix(*texts) >= max(map(len, pieces))


def _logprob_of(piece: bytes, place: Token) -> float:
    """The log-probability of another token than the one that was written. Where it is not among the rivals, the least
    of those: at most so much."""
    return place.rivals.get(piece, min(place.rivals.values(), default=place.logprob))
