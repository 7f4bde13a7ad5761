"""Extraction from long texts: some hundred to a thousand tokens, one fact of which is asked for."""

from __future__ import annotations

from measure.quality.checks import Avoids, Check, Json, Matches, Number, Says
from measure.quality.prompts import Prompt, user

_LOG = (
    "Harbour log of the week.",
    "On Monday the ferry Aurora left for Esbjerg with 214 passengers and came back empty.",
    "A crane on pier 2 was out of order until noon, so that two ships had to wait outside.",
    "On Tuesday the harbour master, Ines Castro, measured a depth of 9 metres at the new quay.",
    "The bakery by the gate sold 340 rolls before eight o'clock, more than on any day in spring.",
    "On Wednesday a container with the number KX-7741 was found open; nothing was missing.",
    "The police wrote a short report and drove on to the next village.",
    "On Thursday fog closed the harbour from five to eleven in the morning.",
    "Seven fishing boats came in late, and the auction began at two in the afternoon.",
    "The ice machine failed again, and a mechanic called Goran repaired it with a spare belt.",
    "On Friday the tanker Meridian took on 1250 tonnes of fuel and paid in advance.",
    "Its captain, Oskar Lund, asked for a pilot for half past six in the evening.",
    "On Saturday the sailing school began with eleven children and one very old dog.",
    "A storm warning was given at nine and taken back at noon.",
    "On Sunday nobody worked but the lighthouse keeper, who painted his door green.",
)
_LETTERS = (
    "Minutes of the residents' meeting.",
    "Present were twelve of the nineteen households. The meeting began at seven o'clock.",
    "Mrs Petrov reported on the heating: the old boiler uses a third more gas than the one in the next house.",
    "Three offers for a new one were read out. The firm Halden asks 18400 euros, the firm Brix asks 16900 euros, "
    "and the firm Oates asks 21000 euros but would finish within a week.",
    "After some talk the firm Brix was chosen, with nine votes to three.",
    "Mr Adeyemi asked that the bicycles no longer be left in the passage.",
    "It was agreed that a rack for ten bicycles will be put up in the yard before the end of May.",
    "The Rossi family would like to plant a pear tree behind the house. Nobody was against it.",
    "The lamp on the second floor has been broken since January. Mr Novak will see to it.",
    "The key of the attic is kept by Mrs Lindqvist on the fourth floor from now on.",
    "The fee for the stairs' cleaning rises from 14 to 16 euros a month.",
    "The next meeting is on the 9th of October at half past seven, in the room of the chess club.",
)


def _long(lines: tuple[str, ...], times: int = 1) -> str:
    """The text, between other texts of the same kind when it is to be longer."""
    filler = [
        f"Note {number} of the archive: shelf {number * 7 % 23} was counted on a quiet afternoon, and all "
        f"{number * 13 % 89 + 10} folders were in their places, none of them wet, torn or in the wrong box."
        for number in range(1, 12 * (times - 1) + 1)
    ]
    half = len(filler) // 2
    return "\n".join((*filler[:half], *lines, *filler[half:]))


def _prompt(id_: str, text: str, question: str, *checks: Check, max_tokens: int = 32) -> Prompt:
    return Prompt(f"context/{id_}", "context", user(f"{text}\n\n{question}"), checks, max_tokens)


CONTEXT = (
    _prompt("person", _long(_LOG), "Who is the harbour master? Answer with the name.", Says(("Castro",))),
    _prompt("amount", _long(_LOG), "How many tonnes of fuel did the Meridian take on?", Matches(r"1[,.]?250")),
    _prompt("code", _long(_LOG), "Which container was found open? Answer with its number.", Says(("KX-7741",))),
    _prompt("colour", _long(_LOG), "In which colour did the lighthouse keeper paint his door?", Says(("green",))),
    _prompt(
        "chosen",
        _long(_LETTERS),
        "Which firm was chosen for the boiler? Answer with its name.",
        Says(("Brix",)),
        Avoids(("Halden", "Oates")),
    ),
    _prompt(
        "date", _long(_LETTERS), "On which day is the next meeting?", Matches(r"(?i)9(th)?( of)? october|october 9")
    ),
    _prompt(
        "fields",
        _long(_LETTERS),
        'Who keeps the key of the attic, and on which floor? Answer only with JSON: {"name": string, "floor": number}.',
        Json(
            {
                "type": "object",
                "required": ["name", "floor"],
                "properties": {"name": {"pattern": "Lindqvist"}, "floor": {"const": 4}},
            }
        ),
    ),
    _prompt(
        "count",
        _long(_LETTERS),
        "How many households were present? Answer with the number only.",
        Matches(r"(?i)^\W*(12|twelve)\b"),
    ),
    _prompt(
        "absent",
        _long(_LETTERS),
        "What is the caretaker's telephone number? If the text does not say, answer 'unknown'.",
        Says(("unknown",)),
    ),
    _prompt("longer-captain", _long(_LOG, 2), "What is the name of the captain of the Meridian?", Says(("Lund",))),
    _prompt(
        "longer-price",
        _long(_LETTERS, 2),
        "How much does the firm Brix ask, in euros? Answer with the number only.",
        Number(16900),
    ),
)
