"""Longer answers: do they go on sensibly, and do those end that should?"""

from __future__ import annotations

from measure.quality.checks import Check, Ends, InOrder, Language, NoLoop, Words
from measure.quality.prompts import Prompt, user


def _prompt(id_: str, text: str, *checks: Check, max_tokens: int = 112) -> Prompt:
    return Prompt(f"repetition/{id_}", "repetition", user(text), (NoLoop(), *checks), max_tokens)


REPETITION = (
    _prompt("story", "Tell a short story about a lighthouse keeper who finds a letter."),
    _prompt("explain", "Explain how a refrigerator keeps food cold."),
    _prompt("describe", "Describe a walk through a forest in autumn, with sounds and smells."),
    _prompt("letter", "Write a polite letter to a neighbour whose dog barks at night."),
    _prompt("many-animals", "List twenty different animals, separated by commas."),
    _prompt("poem", "Write a poem of four lines about the moon.", max_tokens=80),
    _prompt("german-story", "Erzähle in wenigen Sätzen, wie ein Bauer sein verlorenes Schaf sucht.", Language("de")),
    _prompt("count", "Count from 1 to 15, separated by commas.", InOrder(("1", "5", "9", "12", "15")), max_tokens=72),
    _prompt("thanks", "Thank a friend for a book in one or two sentences.", Ends(), Words(3, 60), max_tokens=72),
    _prompt("definition", "What is an island? Answer in one sentence.", Ends(), max_tokens=64),
)
