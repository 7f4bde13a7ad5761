"""The pairs that a person should look at first, and what there is to say of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from measure.quality.pairs import Pair

WORST = 12


def worst_pairs(pairs: Iterable[Pair], most: int = WORST) -> list[Pair]:
    """Return the pairs whose candidate lost most, worst first; equal answers are never among them."""
    return sorted((pair for pair in pairs if pair.diverged), key=_harm, reverse=True)[:most]


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
