"""Form: JSON by schema, lists, tables, code fences, the language of the question."""

from __future__ import annotations

from measure.quality.checks import Bullets, Check, Code, Ends, Json, Language, Matches, Numbered, Table
from measure.quality.prompts import Prompt, user


def _prompt(id_: str, text: str, *checks: Check, max_tokens: int = 48) -> Prompt:
    return Prompt(f"format/{id_}", "format", user(text), checks, max_tokens)


def _object(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_TEXT = {"type": "string", "minLength": 1}
_WHOLE = {"type": "integer"}

FORMAT = (
    _prompt(
        "json-person",
        'Answer only with JSON of the form {"name": string, "age": number}. Lena is 31 years old.',
        Json(_object(name={"enum": ["Lena"]}, age={"const": 31})),
    ),
    _prompt(
        "json-list",
        'Answer only with a JSON array of three strings: the primary colours, such as ["a", "b", "c"].',
        Json({"type": "array", "items": _TEXT, "minItems": 3, "maxItems": 3}),
    ),
    _prompt(
        "json-nested",
        'Write only JSON: {"order": {"item": string, "count": number}, "paid": boolean}. '
        "Four lamps were ordered and have been paid for.",
        Json(_object(order=_object(item=_TEXT, count={"const": 4}), paid={"const": True})),
    ),
    _prompt(
        "json-label",
        'Classify the review as "good" or "bad". Answer only with JSON like {"label": "good"}. '
        "Review: The room was dirty and the staff were rude.",
        Json(_object(label={"enum": ["bad"]})),
        max_tokens=32,
    ),
    _prompt(
        "json-null",
        'Answer only with JSON: {"name": string, "phone": string or null}. Card: "Otto Brand, carpenter, Bergen".',
        Json(_object(name=_TEXT, phone={"type": "null"})),
    ),
    _prompt(
        "json-rows",
        'Turn this into a JSON array of objects {"city": string, "year": number} and write nothing else: '
        "Ghent 1985, Turku 2011.",
        Json({"type": "array", "items": _object(city=_TEXT, year=_WHOLE), "minItems": 2, "maxItems": 2}),
        max_tokens=64,
    ),
    _prompt(
        "bullets-three",
        "List three fruits as bullet points, each on its own line starting with '- '. Write nothing else.",
        Bullets(3),
        max_tokens=32,
    ),
    _prompt(
        "bullets-five",
        "Name five things that one finds in a kitchen, as a Markdown bullet list, without any other text.",
        Bullets(5),
    ),
    _prompt(
        "numbered-four",
        "Write the four seasons as a numbered list, beginning with '1. Spring'. Write only the list.",
        Numbered(4),
    ),
    _prompt(
        "numbered-steps",
        "How does one make tea? Answer with exactly three numbered steps of a few words each.",
        Numbered(3),
        max_tokens=80,
    ),
    _prompt(
        "table",
        "Make a Markdown table with the columns Animal and Legs, and two rows: a bird has 2 legs, a cat has 4 legs.",
        Table(columns=2, rows=2),
        max_tokens=64,
    ),
    _prompt(
        "code-add",
        "Write a Python function add(a, b) that returns the sum. Answer with one code block only.",
        Code(("def add(", "return")),
        max_tokens=80,
    ),
    _prompt(
        "code-loop",
        "Write Python code in one fenced code block that prints the numbers from 1 to 3. No explanation.",
        Code(("print",)),
        max_tokens=64,
    ),
    _prompt(
        "yes-or-no",
        "Is ice frozen water? Answer only yes or no.",
        Matches(r"(?i)(yes|no)\W*", whole=True),
        max_tokens=16,
    ),
    _prompt(
        "date", "Write the 5th of March 2024 as YYYY-MM-DD and nothing else.", Matches("2024-03-05"), max_tokens=24
    ),
    _prompt("capitals", "Write the word 'harbour' in capital letters.", Matches(r"\bHARBOUR\b"), max_tokens=24),
    _prompt("german", "Warum ist der Himmel blau? Antworte in zwei kurzen Sätzen.", Language("de"), max_tokens=64),
    _prompt("french", "Pourquoi les feuilles tombent-elles en automne ? Réponds en une phrase.", Language("fr")),
    _prompt("spanish", "¿Por qué es importante beber agua? Responde en una frase corta.", Language("es")),
    _prompt(
        "english", "Answer in English, in one sentence: Was ist ein Fahrrad?", Language("en"), Ends(), max_tokens=64
    ),
)
