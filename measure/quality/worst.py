"""The pairs that a person should look at first, and what there is to say of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from measure.quality.pairs import Pair

WORST = 12
KEPT = 6
"""Of the worst, so many are kept with a verdict."""
LONGEST_TEXT = 1500
"""Longer prompts are shown with their middle left out."""
LONGEST_ANSWER = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstPair:
    """A pair as it is kept: both answers, of which the first ``same`` characters are alike, and what is to be said."""

    prompt_id: str
    prompt: str
    baseline: str
    candidate: str
    same: int
    remarks: tuple[str, ...]


def kept_pairs(pairs: Iterable[Pair]) -> tuple[WorstPair, ...]:
    """Return the worst as they are kept."""
    return tuple(
        WorstPair(
            prompt_id=pair.prompt.id,
            prompt=prompt_text(pair),
            baseline=pair.baseline.written[:LONGEST_ANSWER],
            candidate=pair.candidate.written[:LONGEST_ANSWER],
            same=min(pair.same_characters, LONGEST_ANSWER),
            remarks=remarks(pair),
        )
        for pair in worst_pairs(pairs, KEPT)
    )


def worst_pairs(pairs: Iterable[Pair], most: int = WORST) -> list[Pair]:
    """Return the pairs whose candidate lost most, worst first; equal answers are never among them."""
    return sorted((pair for pair in pairs if pair.diverged), key=_harm, reverse=True)[:most]


def prompt_text(pair: Pair) -> str:
    """Return the prompt for a person."""
    messages = pair.prompt.messages
    text = messages[0]["content"]
    if len(messages) > 1:
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else f"{text[:half]}\n[…]\n{text[-half:]}"


def remarks(pair: Pair) -> tuple[str, ...]:
    """Return what is to be said of a pair, a few words each."""
    said = []
    if pair.candidate_problems and not pair.baseline_problems:
        said.append(f"lost: the answer {pair.candidate_problems[0]}")
    elif pair.baseline_problems and not pair.candidate_problems:
        said.append(f"gained: the baseline's answer {pair.baseline_problems[0]}")
    elif pair.candidate_problems:
        said.append(f"both fail: the answer {pair.candidate_problems[0]}")
    if pair.loops[1] and not pair.loops[0]:
        said.append("became a loop")
    if pair.candidate.was_cut and not pair.baseline.was_cut:
        said.append("no longer ends")
    said.append(f"{pair.same_words} of {pair.lengths[0]} words the same, then another")
    if (shared := pair.shared) is not None:
        said.append(f"{shared.loss:.2f} nats lost over {shared.places} tokens")
    return tuple(said)


def _harm(pair: Pair) -> tuple[bool, bool, float, float]:
    lost = bool(pair.candidate_problems) and not pair.baseline_problems
    looped = pair.loops[1] and not pair.loops[0]
    loss = pair.shared.loss if pair.shared is not None else 0.0
    return lost, looped, loss, pair.edit_share
