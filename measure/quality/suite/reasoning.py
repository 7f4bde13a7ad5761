"""Arithmetic and logic, from what the smallest models can do upwards."""

from __future__ import annotations

from measure.quality.checks import Check, Matches, Number, Says
from measure.quality.prompts import Prompt, user


def _prompt(id_: str, text: str, *checks: Check, max_tokens: int = 48) -> Prompt:
    return Prompt(f"reasoning/{id_}", "reasoning", user(text), checks, max_tokens)


_NUMBER_ONLY = " Answer with the number only."

REASONING = (
    _prompt("sum", "What is 2 + 3?" + _NUMBER_ONLY, Number(5), max_tokens=16),
    _prompt("sum-larger", "What is 47 + 38?" + _NUMBER_ONLY, Number(85), max_tokens=16),
    _prompt("difference", "What is 100 - 64?" + _NUMBER_ONLY, Number(36), max_tokens=16),
    _prompt("product", "What is 7 * 8?" + _NUMBER_ONLY, Number(56), max_tokens=16),
    _prompt("product-larger", "What is 23 * 14?" + _NUMBER_ONLY, Number(322), max_tokens=16),
    _prompt("quotient", "What is 144 / 12?" + _NUMBER_ONLY, Number(12), max_tokens=16),
    _prompt("apples", "Tom has 3 apples and buys 4 more. How many apples does he have?" + _NUMBER_ONLY, Number(7)),
    _prompt(
        "change", "A book costs 12 euros. I pay with 20 euros. How many euros do I get back?" + _NUMBER_ONLY, Number(8)
    ),
    _prompt(
        "speed", "A train goes 60 km in one hour. How many km does it go in three hours?" + _NUMBER_ONLY, Number(180)
    ),
    _prompt("sequence", "Which number comes next: 2, 4, 6, 8, ...?" + _NUMBER_ONLY, Number(10), max_tokens=16),
    _prompt(
        "sequence-doubling", "Which number comes next: 3, 6, 12, 24, ...?" + _NUMBER_ONLY, Number(48), max_tokens=16
    ),
    _prompt("compare", "Which is larger, 9.8 or 9.12? Answer with the number only.", Number(9.8), max_tokens=16),
    _prompt(
        "taller",
        "Ann is taller than Ben. Ben is taller than Cleo. Who is the tallest? Answer with the name.",
        Matches(r"^\W*Ann\b"),
        max_tokens=24,
    ),
    _prompt(
        "syllogism",
        "All birds have wings. A robin is a bird. Does a robin have wings? Answer yes or no.",
        Says(("yes",)),
        max_tokens=24,
    ),
    _prompt(
        "if-not",
        "If it rains, the street is wet. The street is dry. Does it rain? Answer yes or no.",
        Matches(r"(?i)^\W*no\b"),
        max_tokens=24,
    ),
    _prompt(
        "odd-one",
        "Which word does not belong: Monday, Tuesday, apple, Friday? Answer with that word.",
        Matches(r"(?i)^\W*apple\b"),
        max_tokens=24,
    ),
    _prompt(
        "days",
        "Today is Wednesday. Which day is it in two days? Answer with the day.",
        Says(("friday",)),
        max_tokens=24,
    ),
)
