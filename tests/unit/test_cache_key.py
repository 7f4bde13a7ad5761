"""The laws of the key: what can change an answer is in it, and nothing else is."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cache.key import ItemKeys, Uncacheable, make_key, pattern, tag

REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    "temperature": 0.5,
    "seed": 7,
}
CHANGES: dict[str, list[Any]] = {
    "messages": [[{"role": "user", "content": "hi"}], [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]],
    "tools": [[{"type": "function", "function": {"name": "f"}}], [{"type": "function", "function": {"name": "g"}}]],
    "tool_choice": ["auto", "required", {"type": "function", "function": {"name": "f"}}],
    "response_format": [{"type": "json_object"}, {"type": "text"}],
    "temperature": [0, 1, 0.25],
    "top_p": [1, 0.9],
    "top_k": [1, 40],
    "min_p": [0.05],
    "max_tokens": [1, 2],
    "max_completion_tokens": [1, 2],
    "seed": [0, 8],
    "stop": ["a", ["a"], ["a", "b"]],
    "n": [2, 3],
    "logprobs": [True],
    "top_logprobs": [1, 2],
    "logit_bias": [{"5": 1}],
    "frequency_penalty": [0, 1],
    "presence_penalty": [0, 1],
    "reasoning_effort": ["low", "high"],
    "options": [{"num_ctx": 4096}, {"num_ctx": 8192}],
    "num_ctx": [4096, 8192],
    "chat_template_kwargs": [{"enable_thinking": False}],
    "suffix": ["x"],
    "echo": [True],
    "dimensions": [64],
    "encoding_format": ["base64"],
    "something_new": [None, 1, "1", True, [1], {"a": 1}],
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
requests = st.dictionaries(
    st.sampled_from(["messages", "temperature", "seed", "stop", "tools", "x", "n", "top_k", "options"]), json_values
)


def digest(request: dict[str, Any] | str, *, operation: str = "chat", model: str = "m", scope: str = "") -> str:
    data = request if isinstance(request, str) else json.dumps(request)
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return make_key(operation, model, scope, fields).digest


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHANGES.items() for value in values])
def test_each_field_that_can_change_the_answer_changes_the_key(name: str, value: Any) -> None:
    assert digest({**REQUEST, name: value}) != digest(REQUEST)


@pytest.mark.parametrize("name", list(CHANGES))
def test_two_values_of_a_field_have_two_keys(name: str) -> None:
    values = CHANGES[name]
    assert len({digest({**REQUEST, name: value}) for value in values}) == len(values)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream", True),
        ("stream_options", {"include_usage": True}),
        ("user", "ann"),
        ("metadata", {"trace": "1"}),
        ("model", "an-alias"),
        ("n", 1),
        ("n", None),
        ("logprobs", False),
        ("stop", None),
        ("tools", None),
        ("max_tokens", None),
    ],
)
def test_what_cannot_change_the_answer_does_not_change_the_key(name: str, value: Any) -> None:
    assert digest({**REQUEST, name: value}) == digest(REQUEST)


def test_operation_model_and_scope_are_in_the_key() -> None:
    keys = {
        digest(REQUEST),
        digest(REQUEST, operation="completion"),
        digest(REQUEST, model="n"),
        digest(REQUEST, scope="ann"),
        digest(REQUEST, scope="bob"),
    }
    assert len(keys) == 5


def test_neighbouring_parts_cannot_run_into_each_other() -> None:
    assert digest({}, model="ab", scope="c") != digest({}, model="a", scope="bc")
    assert digest({}, operation="ab", model="c") != digest({}, operation="a", model="bc")


@given(requests)
def test_key_order_and_white_space_do_not_matter(request: dict[str, Any]) -> None:
    backwards = json.dumps(_reversed(request), indent=3, separators=(" ,\n", " : "), ensure_ascii=False)
    assert digest(backwards) == digest(request)


@given(st.integers(-(2**52), 2**52), st.sampled_from(["temperature", "top_k", "x"]))
def test_a_whole_number_is_one_however_it_is_spelled(number: int, name: str) -> None:
    assert (
        digest(f'{{"{name}": {number}.0}}') == digest(f'{{"{name}": {number}}}') == digest(f'{{"{name}":{number}e0}}')
    )


@given(requests, requests)
def test_two_requests_have_one_key_only_when_they_mean_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assume(_meaning(one) != _meaning(other))
    assert digest(one) != digest(other)


@given(requests, st.text(max_size=5), st.text(max_size=5))
def test_no_request_has_the_same_key_in_two_scopes(request: dict[str, Any], one: str, other: str) -> None:
    assume(one != other)
    assert digest(request, scope=one) != digest(request, scope=other)


@pytest.mark.parametrize("value", [b"1e999", b"1" * 30, b'"\\ud800"', b"[" * 4000 + b"]" * 4000])
def test_what_has_no_canonical_form_is_not_cacheable(value: bytes) -> None:
    with pytest.raises(Uncacheable):
        make_key("chat", "m", "", {"x": value})


def test_an_input_has_one_key_in_every_batch() -> None:
    def keys(request: dict[str, Any]) -> ItemKeys:
        return ItemKeys("embeddings", "m", "ann", msgspec.json.decode(json.dumps(request), type=dict[str, msgspec.Raw]))

    alone, batch = keys({"input": "a"}), keys({"input": ["b", "a"], "encoding_format": "float", "user": "u"})
    assert alone.of("a") == batch.of("a")
    assert alone.of("a") != alone.of("b")
    assert alone.of("a") != keys({"input": "a", "dimensions": 8}).of("a")


def test_names_hide_the_scope_and_are_found_by_patterns() -> None:
    name = make_key("chat", "the-model", "ann", {}).entry("fp")
    assert "ann" not in name
    assert "the-model" not in name
    for found in (pattern(), pattern(model="the-model"), pattern(scope="ann"), pattern(scope="ann", model="the-model")):
        assert fnmatchcase(name, found)
    for other in (pattern(model="another"), pattern(scope="bob"), pattern(scope="ann", model="another")):
        assert not fnmatchcase(name, other)
    assert tag("ann") == tag("ann") != tag("bob")


def test_leases_and_flights_are_no_entries() -> None:
    key = make_key("chat", "m", "", {})
    assert not fnmatchcase(key.lease(["a"]), pattern())
    assert not fnmatchcase(key.flight("me"), pattern())


def test_a_lease_is_for_the_same_deployments_in_any_order() -> None:
    key = make_key("chat", "m", "", {})
    assert key.lease(["a", "b"]) == key.lease(["b", "a"]) != key.lease(["a"])


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _reversed(value[name]) for name in reversed(value)}
    return [_reversed(each) for each in value] if isinstance(value, list) else value


def _meaning(request: dict[str, Any]) -> str:
    """An independent spelling of what the key's laws say is the same."""
    kept = {
        name: value
        for name, value in request.items()
        if not (value is None and name != "x" and name != "messages" and name != "top_k" and name != "options")
        and not (name == "n" and value == 1 and value is not True)
    }
    return json.dumps(_plain(kept), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
