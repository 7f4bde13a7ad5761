"""Several turns: what was said before still holds."""

from __future__ import annotations

from measure.quality.checks import Avoids, Bullets, Check, Equals, Json, Language, Matches, Number, Says
from measure.quality.prompts import Prompt, user


def _prompt(id_: str, turns: tuple[str, ...], *checks: Check, max_tokens: int = 40) -> Prompt:
    return Prompt(f"turns/{id_}", "turns", user(*turns), checks, max_tokens)


TURNS = (
    _prompt("name", ("My name is Farid.", "Nice to meet you, Farid!", "What is my name?"), Says(("farid",))),
    _prompt(
        "two-facts",
        ("I have a dog called Bruno and a cat called Mimi.", "How lovely!", "What is my cat called? One word."),
        Says(("mimi",)),
        Avoids(("bruno",)),
        max_tokens=24,
    ),
    _prompt(
        "correction",
        (
            "The meeting is on Monday.",
            "Noted: Monday.",
            "Sorry, it was moved to Thursday.",
            "Noted.",
            "On which day is the meeting? Answer with the day only.",
        ),
        Says(("thursday",)),
        Avoids(("monday",)),
        max_tokens=24,
    ),
    _prompt(
        "running-sum",
        ("Start with 10.", "10", "Add 5.", "15", "Add 7. Answer with the number only."),
        Number(22),
        max_tokens=16,
    ),
    _prompt(
        "standing-form",
        (
            'Answer every question with JSON like {"answer": "..."} and nothing else.',
            '{"answer": "Understood"}',
            "What is the colour of grass?",
            '{"answer": "green"}',
            "What is the colour of snow?",
        ),
        Json({"type": "object", "required": ["answer"], "properties": {"answer": {"type": "string"}}}),
    ),
    _prompt(
        "standing-list",
        ("Give me two vegetables as a bullet list.", "- carrot\n- leek", "And now two drinks, in the same form."),
        Bullets(2),
        max_tokens=32,
    ),
    _prompt(
        "standing-language",
        ("Bitte antworte immer auf Deutsch.", "Gerne, das mache ich.", "What is the moon? One sentence, please."),
        Language("de"),
        max_tokens=56,
    ),
    _prompt(
        "pattern",
        ("cat", "CAT", "river", "RIVER", "window"),
        Matches("WINDOW"),
        max_tokens=16,
    ),
    _prompt(
        "translate",
        ("Translate to French: cat", "chat", "Translate to French: house", "maison", "Translate to French: water"),
        Matches(r"(?i)\beau\b"),
        max_tokens=24,
    ),
    _prompt(
        "first-turn",
        ("The code word is LANTERN.", "I will remember it.", "What is 1 + 1?", "2", "Which code word did I give you?"),
        Says(("lantern",)),
    ),
    _prompt(
        "labels",
        ("great film!", "positive", "a waste of time", "negative", "I loved every minute"),
        Equals("positive"),
        max_tokens=16,
    ),
)
