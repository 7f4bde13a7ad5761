"""Batches of texts to embed: taken apart and put together again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.items import read_answer, shares, split, write_answer


@pytest.mark.parametrize(
    ("value", "items"),
    [
        ("a", ["a"]),
        (["a", "b", "a"], ["a", "b", "a"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([], None),
        ([True, 1], None),
        ([["a"]], None),
        ({"a": 1}, None),
        (None, None),
    ],
)
def test_inputs(value: Any, items: list[Any] | None) -> None:
    assert split(json.dumps(value).encode()) == items


def answer(*vectors: Any, tokens: int = 5) -> bytes:
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in vectors]
    return json.dumps(
        {"object": "list", "data": data, "model": "e", "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    ).encode()


def test_what_is_taken_apart_is_put_together_again_in_the_order_of_the_inputs() -> None:
    read = read_answer(answer((1, [2.5]), (0, "AAAA")), 2)
    assert read is not None
    vectors, tokens = read
    assert json.loads(write_answer("asked", vectors, tokens)) == {
        "object": "list",
        "data": [
            {"object": "embedding", "embedding": "AAAA", "index": 0},
            {"object": "embedding", "embedding": [2.5], "index": 1},
        ],
        "model": "asked",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }


@pytest.mark.parametrize("body", [answer((0, [1])), answer((0, [1]), (2, [1])), b"{}", b"[]", b"x", b'{"data": [1]}'])
def test_an_answer_of_another_shape_is_not_taken_apart(body: bytes) -> None:
    assert read_answer(body, 2) is None


@given(st.integers(0, 10_000), st.lists(st.text(), min_size=1))
def test_shared_tokens_add_up(tokens: int, items: list[str]) -> None:
    each = shares(tokens, items)
    assert min(each) >= 0
    assert len(each) == len(items)
    assert sum(each) == (tokens if any(items) else 0)
