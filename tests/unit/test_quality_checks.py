"""Each checker takes good answers and refuses bad ones, and says what is wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replies import said

from measure.quality.checks import (
    Avoids,
    Bullets,
    Calls,
    Check,
    Code,
    Contains,
    Ends,
    Equals,
    InOrder,
    Json,
    Language,
    Matches,
    NoLoop,
    Number,
    Numbered,
    Says,
    Sentences,
    Table,
    Words,
)
from measure.quality.reply import Reply, ToolCall

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TABLE = "| Animal | Legs |\n|---|:-:|\n| bird | 2 |\n| cat | 4 |"

GOOD: list[tuple[Check, str]] = [
    (Json(PERSON), '{"name": "Lena", "age": 31}'),
    (Json(PERSON), '```json\n{"name": "Lena", "age": 31}\n```'),
    (Json(PERSON), '\n {"age":31,"name":"Ünal"} '),
    (Bullets(2), "- one\n- two"),
    (Bullets(2), "Here they are:\n\n* one\n* two\n\nEnjoy!"),
    (Numbered(3), "1. a\n2. b\n3. c"),
    (Numbered(2), "Steps:\n1) first\n2) second"),
    (Table(columns=2, rows=2), TABLE),
    (Table(columns=2, rows=2), f"Here:\n\n{TABLE}\n\nThat is all."),
    (Table(columns=2, rows=1), "Animal | Legs\n--- | ---\nbird | 2"),
    (Code(("return",)), "```python\ndef f():\n    return 1\n```"),
    (Code(), "Like this:\n```\nprint(1)\n```\nDone."),
    (Language("de"), "Der Himmel ist blau, weil das Licht gestreut wird."),
    (Language("en"), "The sky is blue because of the way light is scattered."),
    (Language("fr"), "Les feuilles tombent parce que la lumière est plus faible."),
    (Language("es"), "El agua es buena para la salud de las personas."),
    (Language("ja"), "空が青いのは光のためです。"),
    (Language("zh"), "天空是蓝色的。"),
    (Language("ru"), "Небо голубое."),
    (Says(("paris",)), "It is Paris."),
    (Says(("12", "twelve")), "There are twelve."),
    (Says(("KX-7741",)), "It is kx-7741!"),
    (Avoids(("banana",)), "apples and bananas?"),
    (InOrder(("a", "b", "c")), "A, b and then c."),
    (Number(5), "2 + 3 = 5"),
    (Number(16900), "It asks 16,900 euros."),
    (Number(-4), "The result is -4."),
    (Number(9.8), "9.8"),
    (Number(7), "He has 7."),
    (Words(2, 2), "Brown bear."),
    (Words(3, 3), "it's well-known, 3.5"),
    (Sentences(2), "Bees fly. Do they sing?"),
    (Sentences(1), "It costs 3.50 euros."),
    (Matches("^a"), "  abc"),
    (Matches(r"(yes|no)\W*", whole=True), "yes."),
    (Equals("Paris"), ' "Paris." '),
    (Contains("New York"), "It is NEW\nYORK, I think"),
    (Ends(), "All said."),
    (NoLoop(), "One two three, one two four, and so on to the end of the story."),
]

BAD: list[tuple[Check, str, str]] = [
    (Json(PERSON), 'Sure! {"name": "Lena", "age": 31}', "is not JSON"),
    (Json(PERSON), '{"name": "Lena"}', "'age' is a required property"),
    (Json(PERSON), '{"name": "Lena", "age": "31"}', "age: '31' is not of type 'integer'"),
    (Json(PERSON), '{"name": "Lena", "age": 31', "is not JSON"),
    (Json(PERSON), "", "is not JSON"),
    (Json({"type": "array", "items": {"type": "string"}}), '["a", 2]', "[1]: 2 is not of type 'string'"),
    (Bullets(3), "- one\n- two", "has 2 bullets, not 3"),
    (Bullets(2), "1. one\n2. two", "has 0 bullets"),
    (Bullets(2), "- one\nand then some text\n- two", "other lines"),
    (Bullets(1), "A line\nanother line\n- one", "other lines"),
    (Numbered(3), "1. a\n3. b\n4. c", "has 1 numbered items"),
    (Table(columns=2, rows=2), "Animal, Legs\nbird, 2", "has no Markdown table"),
    (Table(columns=2, rows=3), TABLE, "has 2 table rows, not 3"),
    (Table(columns=3, rows=2), TABLE, "other than 3 columns"),
    (Table(columns=2, rows=2), TABLE.replace("| cat | 4 |", "| cat | 4 | 5 |"), "other than 2 columns"),
    (Code(), "print(1)", "exactly one code fence"),
    (Code(), "```\na\n```\n```\nb\n```", "exactly one code fence"),
    (Code(), "```python\nprint(1)", "exactly one code fence"),
    (Code(("return",)), "```\npass\n```", "has no 'return'"),
    (Language("de"), "The sky is blue because of the light.", "is written in en, not de"),
    (Language("de"), "Himmel.", "no language that can be told"),
    (Says(("paris",)), "It is Parisian.", "does not say 'paris'"),
    (Avoids(("banana",)), "apple, Banana", "says 'banana'"),
    (Avoids(("banana",)), "  ", "is empty"),
    (InOrder(("a", "b")), "b, a", "another order"),
    (InOrder(("a", "b")), "a", "does not say 'b'"),
    (Number(5), "five", "has no number"),
    (Number(5), "5 or 6", "says 6, not 5"),
    (Number(5), "5.5", "says 5.5"),
    (Words(1, 2), "one two three", "has 3 words"),
    (Sentences(1), "One. Two.", "has 2 sentences"),
    (Matches("^b"), "abc", "does not match"),
    (Matches("yes", whole=True), "yes, of course", "does not match"),
    (Equals("Paris"), "It is Paris", "is not 'Paris'"),
    (Contains("New York"), "York, New", "does not contain 'New York'"),
    (Ends(), " ", "is empty"),
    (NoLoop(), "the moon " * 12, "over and over"),
    (NoLoop(), "", "is empty"),
]


@pytest.mark.parametrize(("check", "text"), GOOD)
def test_a_good_answer_passes(check: Check, text: str) -> None:
    assert check.problem(said(text)) == ""


@pytest.mark.parametrize(("check", "text", "why"), BAD)
def test_a_bad_answer_is_told_what_is_wrong_with_it(check: Check, text: str, why: str) -> None:
    assert why in check.problem(said(text))


def test_an_answer_that_ran_into_its_limit_did_not_end() -> None:
    assert Ends().problem(said("All sai", finish="length")) == "does not come to an end"


def test_a_call_needs_the_right_name_and_arguments() -> None:
    check = Calls("timer", {"type": "object", "required": ["minutes"], "properties": {"minutes": {"const": 10}}})
    assert check.problem(Reply(calls=(ToolCall("timer", '{"minutes": 10}'),))) == ""
    assert "no calls" in check.problem(said("I set a timer."))
    assert "calls 'clock'" in check.problem(Reply(calls=(ToolCall("clock", "{}"),)))
    assert "is not JSON" in check.problem(Reply(calls=(ToolCall("timer", '{"minutes": 1'),)))
    assert "10 was expected" in check.problem(Reply(calls=(ToolCall("timer", '{"minutes": 5}'),)))
    twice = (ToolCall("timer", '{"minutes": 10}'),) * 2
    assert "makes 2 calls" in check.problem(Reply(calls=twice))


@given(st.dictionaries(st.sampled_from(["name", "age", "more"]), st.one_of(st.text(), st.integers(), st.none())))
def test_any_object_is_judged_by_the_schema_alone(value: dict[str, object]) -> None:
    fits = set(value) == {"name", "age"} and isinstance(value["name"], str) and isinstance(value["age"], int)
    assert (Json(PERSON).problem(said(json.dumps(value))) == "") == fits


@given(st.integers(0, 8), st.integers(1, 8))
def test_a_list_passes_exactly_when_its_length_is_right(items: int, wanted: int) -> None:
    lines = range(1, items + 1)
    assert (Bullets(wanted).problem(said("\n".join(f"- item {n}" for n in lines))) == "") == (items == wanted)
    assert (Numbered(wanted).problem(said("\n".join(f"{n}. item" for n in lines))) == "") == (items == wanted)


@given(st.integers(-(10**9), 10**9))
def test_a_number_is_found_however_it_is_written(value: int) -> None:
    for text in (f"{value}", f"It is {value}.", f"{value:,}", f"1 + 1 = {value}"):
        assert Number(value).problem(said(text)) == ""
    assert Number(value).problem(said(str(value + 1)))


@given(st.text(max_size=200))
def test_no_text_makes_a_checker_stumble(text: str) -> None:
    for check in {type(check): check for check, _ in GOOD}.values():
        assert isinstance(check.problem(said(text)), str)
