"""Answers that are forced into a form, on a real tokenizer with random logits: they parse, whatever a model says."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequest, RequestFailed
from engine.request import Sampling, Sequence, Structure
from engine.sampler import Sampler, Wanted
from engine.structured import FORMS, TEXT_LIMIT, Structures
from engine.tokenizer import Tokenizer

IDS = count()
ENDS = [2, 0]
ENOUGH = 24
"""Tokens after which an answer is nudged to its end."""


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.open(smollm2)


@pytest.fixture(scope="module")
def structures(tokenizer: Tokenizer) -> Structures:
    return Structures(tokenizer.vocabulary, ENDS, tokenizer.special, lambda text: tokenizer.encode(text, special=False))


def answer(
    structures: Structures, tokenizer: Tokenizer, structure: Structure, seed: int, drafts: bool = False, **how: Any
) -> str:
    """An answer drawn from random logits, with drafts that are right, wrong or senseless."""
    sampler = Sampler(ENDS, structures)
    sequence = Sequence(next(IDS), 1, [7], Sampling(400, structure=structure, **how), seed=seed)
    random = np.random.default_rng(seed)
    closing = torch.zeros(tokenizer.size)
    for text, push in (("]", 40.0), ("}", 60.0), ('"', 80.0)):
        closing[tokenizer.encode(text, special=False)[0]] = push
    closing[ENDS] = 100.0
    while sequence.tokens[-1] not in ENDS:
        assert sequence.generated < 400, "it comes to no end"
        if drafts:
            legal = [int(random.choice(np.flatnonzero(structures.masks(sequence, tokenizer.size)[0])))]
            senseless = random.integers(0, tokenizer.size, 2).tolist()
            sequence.drafts = [legal, [*legal, *senseless], senseless, [ENDS[0], *senseless]][random.integers(4)]
        rows = 1 + len(sequence.drafts)
        logits = torch.from_numpy(random.standard_normal((rows, tokenizer.size), np.float32)) * 3
        if sequence.generated > ENOUGH:
            logits += closing
        result = sampler.sample(logits, [Wanted(sequence, 0)])[0]
        assert result.error is None, result.error
        for token in result.tokens:
            sequence.tokens.append(token)
            if token in ENDS:
                break
        sequence.drafts = []
    return tokenizer.decode(sequence.output[:-1])


PARTS = st.recursive(
    st.one_of(
        st.just({"type": "integer", "minimum": -5, "maximum": 500}),
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 9)),
        st.just({"enum": ["red", "gr\u00fcn", 3, None]}),
        st.just({"type": "string", "pattern": "^[a-f]{2,4}$"}),
        st.just({"const": {"a": [1, 2]}}),
    ),
    lambda inner: st.one_of(
        st.builds(lambda item, n: {"type": "array", "items": item, "maxItems": n}, inner, st.integers(0, 3)),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda fields, extra: {
                "type": "object",
                "properties": fields,
                "required": sorted(fields)[: len(fields) // 2 + 1],
                "additionalProperties": extra,
            },
            st.dictionaries(st.sampled_from("abcd\u00e9"), inner, max_size=3),
            st.just(False),
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=25, deadline=None)
@given(schema=PARTS, seed=st.integers(0, 2**32), drafts=st.booleans())
def test_every_masked_answer_is_valid_for_its_schema(
    structures: Structures, tokenizer: Tokenizer, schema: dict[str, Any], seed: int, drafts: bool
) -> None:
    text = answer(structures, tokenizer, Structure("json_schema", json.dumps(schema)), seed, drafts)
    jsonschema.validate(json.loads(text), schema)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), temperature=st.sampled_from([0.0, 1.0]))
def test_every_masked_json_object_parses(
    structures: Structures, tokenizer: Tokenizer, seed: int, temperature: float
) -> None:
    text = answer(structures, tokenizer, Structure("json_object"), seed, seed % 2 == 0, temperature=temperature)
    assert isinstance(json.loads(text), dict)


@settings(max_examples=20, deadline=None)
@given(
    expression=st.sampled_from([r"[0-9]{3}-[a-z]+", "yes|no|gr\u00fcn", "(ab|cd){2,5}x?", r"[^\n]{0,8}"]),
    seed=st.integers(0, 2**32),
)
def test_every_masked_answer_matches_its_expression(
    structures: Structures, tokenizer: Tokenizer, expression: str, seed: int
) -> None:
    # Digits are not written as \\d: the library knows those of a later Unicode than Python does.
    # A number of letters without a limit would go on at random for long: it is cut by the answer's nudge to its end.
    assert re.fullmatch(expression, answer(structures, tokenizer, Structure("regex", expression), seed, seed % 2 == 0))


GBNF = 'root ::= "(" item ("," item){0,4} ")"\nitem ::= [0-9]{1,2} | "[" item? "]"'
LARK = 'start: "(" item ("," item)~0..4 ")"\nitem: /[0-9]{1,2}/ | "[" item? "]"'


@pytest.mark.parametrize("grammar", [GBNF, LARK], ids=["GBNF", "Lark"])
def test_every_masked_answer_is_of_its_grammar(structures: Structures, tokenizer: Tokenizer, grammar: str) -> None:
    for seed in range(4):
        text = answer(structures, tokenizer, Structure("grammar", grammar), seed)
        bare = re.sub(r"\[|\]", "", text)
        assert re.fullmatch(r"\((\d{0,2},){0,4}\d{0,2}\)", bare)
        assert text.count("[") == text.count("]")


def test_an_answer_does_not_end_before_its_least_length_unless_its_form_does(
    structures: Structures, tokenizer: Tokenizer
) -> None:
    assert answer(structures, tokenizer, Structure("regex", "ab"), 3, min_tokens=50) == "ab"
    assert len(answer(structures, tokenizer, Structure("regex", "[ab]*"), 3, min_tokens=20)) >= 20


@pytest.mark.parametrize(
    ("structure", "said"),
    [
        (Structure("json_schema", '{"type": "objekt"}'), "objekt"),
        (Structure("json_schema", '{"type": "object", "not": {}}'), "not"),
        (Structure("json_schema", "{"), ""),
        (Structure("json_schema", "[1]"), "object"),
        (Structure("json_schema", '{"$ref": "file:///etc/passwd"}'), ""),
        (Structure("json_schema", '{"$ref": "https://localhost/schema.json"}'), ""),
        (Structure("regex", "(a"), "unclosed"),
        (Structure("regex", "(?=a)b"), "look"),
        (Structure("grammar", 'root ::= "a" missing'), "missing"),
        (Structure("grammar", "root ::= ("), ""),
        (Structure("regex", "a" * (TEXT_LIMIT + 1)), "limit"),
        (Structure("json_schema", "[" * 100_000), ""),
    ],
    ids=lambda value: getattr(value, "text", "")[:30],
)
def test_what_is_no_form_is_refused_with_the_field_that_it_is_in(
    structures: Structures, structure: Structure, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        structures.compile(structure, "tools")
    assert refused.value.field == "tools"
    assert said in refused.value.message
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    "expression", [r"((a{1,1000}){1,1000}){1,1000}", r"(.*a){20}.{500}b", r"([^a]*a[^b]*b){400}", r"(a?){3000}a{3000}"]
)
def test_an_expression_that_asks_for_too_much_work_is_given_up_instead_of_going_on_for_ever(
    structures: Structures, tokenizer: Tokenizer, expression: str
) -> None:
    with suppress(InvalidRequest, RequestFailed):
        sequence = Sequence(next(IDS), 1, [7], Sampling(9, structure=Structure("regex", expression)))
        for token in tokenizer.encode("aaba" * 20, special=False):
            structures.masks(sequence, tokenizer.size)
            sequence.tokens.append(token)


def test_a_sequence_that_left_its_form_fails_and_says_so(structures: Structures, tokenizer: Tokenizer) -> None:
    strayed = Sequence(next(IDS), 1, [7, *tokenizer.encode("xyz")], Sampling(9, structure=Structure("regex", "[0-9]+")))
    with pytest.raises(RequestFailed, match="left its form"):
        structures.masks(strayed, tokenizer.size)


def test_a_place_that_was_forgotten_is_found_again_from_the_output(
    structures: Structures, tokenizer: Tokenizer
) -> None:
    form = Structure("json_schema", '{"type": "array", "items": {"enum": [10, 20]}, "minItems": 3}')
    kept = Sequence(next(IDS), 1, [7], Sampling(9, structure=form))
    for token in tokenizer.encode("[10, 20", special=False):
        structures.masks(kept, tokenizer.size)
        kept.tokens.append(token)
    anew = Sequence(next(IDS), 1, list(kept.tokens), Sampling(9, structure=form))
    assert np.array_equal(structures.masks(kept, tokenizer.size), structures.masks(anew, tokenizer.size))


def test_a_vocabulary_that_is_padded_never_says_what_no_token_is(structures: Structures, tokenizer: Tokenizer) -> None:
    sequence = Sequence(next(IDS), 1, [7], Sampling(9, structure=Structure("regex", ".*")))
    mask = structures.masks(sequence, tokenizer.size + 100)
    assert mask.shape == (1, tokenizer.size + 100)
    assert not mask[0, tokenizer.size :].any()
    special = [token for token in tokenizer.special if token not in ENDS]
    assert not mask[0, special].any(), "a special token is no text"


def test_no_more_forms_are_kept_than_there_is_room_for(structures: Structures) -> None:
    for number in range(FORMS + 5):
        structures.compile(Structure("regex", f"a{{{number}}}"))
    assert structures._form.cache_info().currsize == FORMS
