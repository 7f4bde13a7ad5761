"""What two texts share, and when a text goes round in circles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.quality.languages import language_of
from measure.quality.text import common_prefix, edit_distance, loops, repetition, words

SHORT = st.text(alphabet="ab ", max_size=8)


def test_words_and_marks_are_told_apart_in_any_script() -> None:
    assert words("Ann's age: 31,5 – naïve") == ["Ann", "'", "s", "age", ":", "31", ",", "5", "–", "naïve"]
    assert words("  \n") == []


@pytest.mark.parametrize(
    "text",
    [
        "!" * 30,
        "cat\n" * 10,
        "Once upon a time. " + "The moon was there again. " * 3,
        "a, b, c, " * 4 + "a, b",  # cut in the middle of a round
        "木木" * 20,
    ],
)
def test_a_text_that_ends_in_rounds_is_a_loop(text: str) -> None:
    assert loops(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no no no",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14",
        "cat cat cat cat cat cat cat cat cat cat, and then the dog came along.",
        "The cat sat on the mat. The dog sat on the mat.",
        "A beginning that is long enough for anything to come back. " + "The cat is out again. " * 2,
        "1. Banana\n2. Apple\n3. Grape\n4. Melon\n5. Orange",
    ],
)
def test_ordinary_text_is_no_loop(text: str) -> None:
    assert not loops(text)


@given(st.text(min_size=1, max_size=20).filter(lambda part: not part.isspace()), st.text(max_size=40))
def test_whatever_comes_often_enough_is_a_loop(part: str, before: str) -> None:
    assert loops(before + part.strip() * 40)


@given(SHORT, SHORT, SHORT)
def test_the_edit_distance_is_a_metric(a: str, b: str, c: str) -> None:
    assert edit_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))


def test_the_edit_distance_counts_the_least_changes() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance(["a", "b", "c"], ["a", "c"]) == 1


@given(SHORT, SHORT)
def test_a_common_prefix_is_common_and_the_longest(a: str, b: str) -> None:
    shared = common_prefix(a, b)
    assert a[:shared] == b[:shared]
    assert shared == min(len(a), len(b)) or a[shared] != b[shared]


def test_repetition_is_the_share_of_sequences_that_were_there_before() -> None:
    assert repetition("one two three four five six") == 0.0
    assert repetition("too short") == 0.0
    assert repetition("a b c d " * 25) > 0.9


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Das ist ein Haus und das ist ein Baum.", "de"),
        ("This is a house and that is a tree.", "en"),
        ("Questa è una casa e non è un albero.", "it"),
        ("Esta é uma casa e não é um carro.", "pt"),
        ("집이 있습니다", "ko"),
        ("هذا بيت كبير", "ar"),
        ("42", ""),
        ("", ""),
    ],
)
def test_a_language_is_told_by_its_script_or_its_small_words(text: str, code: str) -> None:
    assert language_of(text) == code
