"""Instructions: how many, in which order, what not."""

from __future__ import annotations

from measure.quality.checks import Avoids, Check, Ends, Equals, InOrder, Matches, Says, Sentences, Words
from measure.quality.prompts import Prompt, user


def _prompt(id_: str, text: str, *checks: Check, max_tokens: int = 40) -> Prompt:
    return Prompt(f"instructions/{id_}", "instructions", user(text), checks, max_tokens)


INSTRUCTIONS = (
    _prompt(
        "repeat",
        "Repeat exactly this, and nothing else: The grey goose waits at gate nine.",
        Equals("The grey goose waits at gate nine."),
        max_tokens=24,
    ),
    _prompt("one-word", "What is the capital of France? Answer with one word.", Equals("Paris"), max_tokens=16),
    _prompt("two-words", "Name an animal and its colour in exactly two words.", Words(2, 2), max_tokens=16),
    _prompt("one-sentence", "Describe a bicycle in exactly one sentence.", Sentences(1), Ends(), max_tokens=64),
    _prompt("two-sentences", "Say what bees do, in exactly two sentences.", Sentences(2), Ends(), max_tokens=80),
    _prompt("short", "Explain what a bridge is for in at most twelve words.", Words(3, 12), Ends(), max_tokens=40),
    _prompt(
        "alphabetical",
        "Sort these words alphabetically, separated by commas: pear, apple, melon.",
        InOrder(("apple", "melon", "pear")),
    ),
    _prompt("ascending", "Sort these numbers from small to large: 8, 3, 12, 5.", InOrder(("3", "5", "8", "12"))),
    _prompt("backwards", "Count backwards from 5 to 1, separated by commas.", InOrder(("5", "4", "3", "2", "1"))),
    _prompt(
        "weekdays",
        "List the days of the week in order, beginning with Monday, separated by commas.",
        InOrder(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")),
    ),
    _prompt(
        "without-word",
        "Describe the sea in one sentence without using the word 'water'.",
        Avoids(("water",)),
        Ends(),
        max_tokens=64,
    ),
    _prompt(
        "without-digit",
        "How many legs does a spider have? Write the number as a word, not as a digit.",
        Says(("eight",)),
        Matches(r"(?s)\D+", whole=True),
        max_tokens=24,
    ),
    _prompt(
        "exclude",
        "Here are four fruits: apple, banana, cherry, plum. List them all except banana.",
        Says(("apple",)),
        Says(("cherry",)),
        Says(("plum",)),
        Avoids(("banana",)),
    ),
    _prompt(
        "begin-with",
        "Write one sentence about winter. It has to begin with the word 'Slowly'.",
        Matches(r"^\W*Slowly\b"),
    ),
    _prompt("end-with", "Write one short greeting and end it with the word 'goodbye'.", Matches(r"(?i)goodbye\W*$")),
    _prompt(
        "choose",
        "Which is an animal: table, horse, window? Answer with that word only.",
        Equals("horse"),
        max_tokens=16,
    ),
    _prompt(
        "replace",
        "In the sentence 'The cat sleeps', replace 'cat' by 'dog' and write the new sentence.",
        Says(("the dog sleeps",)),
        max_tokens=24,
    ),
    _prompt("opposite", "What is the opposite of 'hot'? One word.", Equals("cold"), max_tokens=16),
)
