"""Which requests may be answered from the cache: by the operator's mode, by the client's headers."""

from __future__ import annotations

import msgspec
import pytest

from cache.rules import Mode, Terms, is_cacheable, is_worth_keeping, read_terms


def fields(**request: object) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(msgspec.json.encode(request), type=dict[str, msgspec.Raw])


@pytest.mark.parametrize(
    ("request_", "auto", "deterministic"),
    [
        ({}, True, False),
        ({"temperature": 0}, True, True),
        ({"temperature": 0.0}, True, True),
        ({"temperature": None}, True, False),
        ({"temperature": 0.7}, False, False),
        ({"temperature": 0.7, "seed": 1}, True, True),
        ({"temperature": 0.7, "seed": 0}, True, True),
        ({"temperature": 0.7, "seed": None}, False, False),
        ({"n": 1}, True, False),
        ({"n": 3}, False, False),
        ({"n": 3, "seed": 1}, True, True),
        ({"temperature": 0, "n": 3}, False, True),
        ({"temperature": "warm"}, False, False),
    ],
)
def test_modes(request_: dict[str, object], auto: bool, deterministic: bool) -> None:
    assert is_cacheable(Mode.AUTO, "chat", fields(**request_)) is auto
    assert is_cacheable(Mode.DETERMINISTIC, "chat", fields(**request_)) is deterministic
    assert is_cacheable(Mode.ALL, "chat", fields(**request_))
    assert not is_cacheable(Mode.OFF, "chat", fields(**request_))


def test_embeddings_are_deterministic() -> None:
    assert is_cacheable(Mode.DETERMINISTIC, "embeddings", fields(input="a"))
    assert not is_cacheable(Mode.OFF, "embeddings", fields(input="a"))


@pytest.mark.parametrize(
    ("use", "cache_control", "terms"),
    [
        ("", "", Terms()),
        ("use", "", Terms()),
        ("Refresh", "", Terms(read=False)),
        ("skip", "", Terms(read=False, write=False)),
        ("only", "", Terms(write=False, only=True)),
        ("", "no-cache", Terms(read=False)),
        ("", "No-Store", Terms(read=False, write=False)),
        ("", "no-cache, no-store", Terms(read=False, write=False)),
        ("", "max-age=60", Terms(max_age_s=60)),
        ("", 'max-age="60", no-transform', Terms(max_age_s=60)),
        ("", "max-age=0", Terms(max_age_s=0)),
        ("", "max-age=soon", Terms()),
        ("", "only-if-cached, max-age=5", Terms(write=False, only=True, max_age_s=5)),
        ("use", "max-age=60", Terms(max_age_s=60)),
        ("only", "no-store", Terms(write=False, only=True)),
    ],
)
def test_what_a_client_may_say(use: str, cache_control: str, terms: Terms) -> None:
    assert read_terms(use, cache_control) == terms


def test_an_unknown_word_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'always'; it can be use, refresh, skip, only"):
        read_terms("always", "")


def test_only_whole_answers_are_kept() -> None:
    assert is_worth_keeping(frozenset({"stop"}), has_limit=False)
    assert is_worth_keeping(frozenset({"tool_calls"}), has_limit=False)
    assert is_worth_keeping(frozenset({"length"}), has_limit=True)
    assert not is_worth_keeping(frozenset({"length"}), has_limit=False)
    assert not is_worth_keeping(frozenset({"stop", "length"}), has_limit=False)
    assert not is_worth_keeping(frozenset({"content_filter"}), has_limit=True)
