"""What is asked of the engine over HTTP is read as OpenAI's clients mean it, and what is wrong is refused by name."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from asking import CONTEXT, HELLO, fields, language

from engine.errors import ContextExceeded, InvalidRequest
from engine.fields import Fields
from engine.protocol import read_chat, read_completion, read_embedding, read_text, read_tokens
from engine.request import Structure

SPOKEN = language()
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def chat(**body: Any) -> Any:
    return read_chat(fields({**HELLO, **body}), SPOKEN)


def test_a_bare_chat_may_fill_the_context_at_temperature_one() -> None:
    asked = chat(nobody_knows={"this": 1}, user=None)
    assert asked.sampling.temperature == 1.0
    assert asked.sampling.max_tokens == CONTEXT - len(asked.prompts[0])
    assert (asked.choices, asked.stream, asked.sampling.logprobs, asked.sampling.seed) == (1, False, None, None)


def test_every_field_reaches_the_engine() -> None:
    asked = chat(
        max_tokens=3,
        max_completion_tokens=7,
        temperature=0,
        top_k=-1,
        top_p=0.5,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"5": -100},
        seed=-1,
        stop="x",
        stop_token_ids=[3],
        ignore_eos=True,
        min_tokens=2,
        logprobs=True,
        top_logprobs=4,
        n=2,
        priority=-3,
        stream=True,
        stream_options={"include_usage": True},
    )
    found = asked.sampling
    assert (found.max_tokens, found.temperature, found.top_k, found.top_p, found.min_p) == (7, 0.0, 0, 0.5, 0.1)
    assert (found.presence_penalty, found.frequency_penalty, found.repetition_penalty) == (1.0, -1.0, 1.1)
    assert (found.logit_bias, found.stop, found.stop_token_ids) == (((5, -100.0),), ("x",), (3,))
    assert (found.ignore_eos, found.min_tokens, found.logprobs) == (True, 2, 4)
    assert (asked.choices, asked.priority, asked.stream, asked.include_usage) == (2, -3, True, True)
    assert 0 <= found.seed < 2**63


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": "x"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 1000}, "n"),
        ({"top_p": 2}, "top_p"),
        ({"stop": [1]}, "stop"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "a"}}, "logit_bias.1"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "regex", "regex": "bad"}}, "response_format"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"functions": [{}]}, "functions"),
        ({"seed": "x"}, "seed"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ],
)
def test_what_is_wrong_is_refused_by_name(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**body)
    assert caught.value.field == field


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a": NaN}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        Fields.decode(body)


def test_a_prompt_over_the_context_tells_both_numbers() -> None:
    with pytest.raises(ContextExceeded) as caught:
        read_completion(fields({"prompt": "x" * CONTEXT}), SPOKEN)
    assert (caught.value.prompt_tokens, caught.value.context, caught.value.field) == (CONTEXT, CONTEXT, "prompt")
    assert read_completion(fields({"prompt": "x" * (CONTEXT - 1)}), SPOKEN).sampling.max_tokens == 16
    assert read_embedding(fields({"input": "x" * CONTEXT}), SPOKEN).inputs


def test_prompts_are_texts_or_tokens_one_or_several() -> None:
    tokens = SPOKEN.tokenizer.encode("ab")
    for prompt in ("ab", tokens, ["ab"], [tokens]):
        assert read_completion(fields({"prompt": prompt}), SPOKEN).prompts == (tokens,)
    assert len(read_completion(fields({"prompt": ["ab", "c"]}), SPOKEN).prompts) == 2
    for wrong in ("", [], [[]], [1.5], [["x"]], [-1], [10**6], {"a": 1}, None):
        with pytest.raises(InvalidRequest) as caught:
            read_completion(fields({"prompt": wrong}), SPOKEN)
        assert caught.value.field == "prompt"


def test_choices_of_one_seed_have_seeds_of_their_own_that_repeat() -> None:
    asked = read_completion(fields({"prompt": ["ab", "c"], "n": 2, "seed": 7}), SPOKEN)
    made = asked.sequences(itertools.count().__next__)
    assert [(one.id, one.prompt_length, one.seed) for one in made] == [(0, 2, 7), (1, 2, 8), (2, 1, 7), (3, 1, 8)]
    free = read_completion(fields({"prompt": "ab", "n": 2}), SPOKEN).sequences(itertools.count().__next__)
    assert free[0].seed != free[1].seed
    with pytest.raises(InvalidRequest):
        read_completion(fields({"prompt": ["a"] * 40, "n": 2}), SPOKEN)


@pytest.mark.parametrize(
    ("form", "structure"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Structure("json_object")),
        ({"type": "json_object", "schema": {"enum": [1]}}, Structure("json_schema", '{"enum":[1]}')),
        ({"type": "json_schema", "json_schema": {"schema": {"enum": [1]}}}, Structure("json_schema", '{"enum":[1]}')),
        ({"type": "regex", "regex": "a+"}, Structure("regex", "a+")),
        ({"type": "grammar", "grammar": 'start: "a"'}, Structure("grammar", 'start: "a"')),
    ],
)
def test_a_form_is_read(form: dict[str, Any], structure: Structure | None) -> None:
    assert chat(response_format=form).sampling.structure == structure


def test_a_call_that_is_asked_for_is_made_a_form() -> None:
    assert chat(tools=[TOOL]).sampling.structure is None
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        structure = chat(tools=[TOOL], tool_choice=choice).sampling.structure
        assert structure is not None
        assert json.loads(structure.text)["properties"]["name"] == {"const": "f"}
    without = chat(tools=[TOOL], tool_choice="none")
    assert without.prompts == chat().prompts


def test_text_is_counted_as_a_request_would_read_it() -> None:
    assert read_text(fields(HELLO), SPOKEN) == chat().prompts[0]
    assert read_text(fields({"prompt": "ab"}), SPOKEN) == read_text(fields({"content": "ab"}), SPOKEN)
    assert read_tokens(fields({"tokens": [1, 2]}), SPOKEN) == [1, 2]
    for wrong in ({}, {"prompt": 1}):
        with pytest.raises(InvalidRequest):
            read_text(fields(wrong), SPOKEN)
    with pytest.raises(InvalidRequest):
        read_tokens(fields({"tokens": [-1]}), SPOKEN)


def test_an_embedding_has_the_length_that_the_model_has() -> None:
    asked = read_embedding(fields({"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8}), SPOKEN)
    assert asked.base64
    assert all(one.pools for one in asked.sequences(itertools.count().__next__))
    for wrong in ({"dimensions": 4}, {"encoding_format": "hex"}):
        with pytest.raises(InvalidRequest) as caught:
            read_embedding(fields({"input": "a", **wrong}), SPOKEN)
        assert caught.value.field == next(iter(wrong))
