"""What two texts have in common, and whether one text goes round in circles. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

LOOP_REPEATS = 3
LOOP_CHARACTERS = 30
"""A text loops when it ends with ``LOOP_REPEATS`` equal parts or more, which together have so many characters."""

_WORD = re.compile(r"\w+|[^\w\s]")
_GRAM = 4


def words(text: str) -> list[str]:
    """Split into words and single punctuation marks: the same for every tokeniser."""
    return _WORD.findall(text)


def common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """Return how many leading items two sequences share."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))


def edit_distance(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the least number of insertions, deletions and replacements (Levenshtein) between two sequences."""
    row = list(range(len(second) + 1))
    for i, one in enumerate(first, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (one != other))
    return row[-1]


def repetition(text: str) -> float:
    """Return the share of 4-word sequences that stood in the text before: 0 for none, near 1 for a loop."""
    said = words(text.casefold())
    grams = [tuple(said[i : i + _GRAM]) for i in range(len(said) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def loops(text: str) -> bool:
    """Whether the text ends in a loop: the same part over and over, whatever its length."""
    tail = text.rstrip()
    for period in range(1, len(tail) // LOOP_REPEATS + 1):
        repeated = max(LOOP_REPEATS * period, LOOP_CHARACTERS)
        if len(tail) >= repeated and tail[-repeated:-period] == tail[-repeated + period :]:
            return True
    return False
