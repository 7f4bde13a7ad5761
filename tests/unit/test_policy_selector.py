"""Model names and selectors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleets import deployment

from policies.selector import (
    asks_for_precision,
    describe_selector,
    mismatch,
    near_names,
    parse_model,
    resolve_model,
    selects,
)
from policies.types import Deployment, Precision

Q8 = replace(deployment("q8", Precision.INT8), scheme="Q8_0", endpoint="box", engine="llamacpp")


def of(precision: Precision) -> Deployment:
    return deployment("any", precision)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("smollm2", ("smollm2", "")),
        ("smollm2@int8+", ("smollm2", "int8+")),
        ("a@b@vllm", ("a@b", "vllm")),
        ("smollm2@", ("smollm2", "")),
        ("@int8", ("@int8", "")),
        ("", ("", "")),
    ],
)
def test_a_name_is_split_at_its_last_at(name: str, parts: tuple[str, str]) -> None:
    assert parse_model(name) == parts


def test_a_known_name_that_holds_an_at_is_not_split() -> None:
    known = {"gpt@v2", "gpt", "smollm2"}
    assert resolve_model("gpt@v2", known) == ("gpt@v2", "")
    assert resolve_model("gpt@v2@int4", known) == ("gpt@v2", "int4")
    assert resolve_model("gpt@int4", known) == ("gpt", "int4")
    assert resolve_model("gpt@user@host", known) == ("gpt", "user@host")
    assert resolve_model("who@int4", known) == ("who", "int4")
    assert resolve_model("who", known) == ("who", "")


def test_names_that_were_probably_meant_are_found() -> None:
    known = ["SmolLM2", "smollm2-chat", "llama3", "qwen"]
    assert near_names("smollm2", known)[0] == "SmolLM2"
    assert near_names("lama3", known) == ["llama3"]
    assert near_names("llama3:8b-instruct-fp16", known) == ["llama3"]
    assert near_names("zzz", known) == []
    assert len(near_names("a", [f"a{i}" for i in range(9)], limit=2)) == 2


@pytest.mark.parametrize("selector", ["int8", "INT8", "int8+", "int4+", "llamacpp", "llama.cpp", "llama-server", "q8"])
def test_each_kind_of_selector_picks_what_it_names(selector: str) -> None:
    assert selects(selector, Q8)


@pytest.mark.parametrize("selector", ["", "Q8_0", "q8_0", "box"])
def test_the_scheme_the_endpoint_and_nothing_pick_it_too(selector: str) -> None:
    assert selects(selector, Q8)


@pytest.mark.parametrize(
    "selector", ["int4", "fp16", "fp16+", "vllm", "BOX", "Q8", "q4_0", "nonsense", "nonsense+", "+"]
)
def test_what_it_is_not_does_not_pick_it(selector: str) -> None:
    assert not selects(selector, Q8)


def test_other_spellings_of_a_precision_and_an_engine_are_understood() -> None:
    assert selects("f16", of(Precision.FP16))
    assert selects("bfloat16", of(Precision.BF16))
    assert selects("float32+", of(Precision.FP32))
    assert selects("lm-studio", replace(Q8, engine="lmstudio"))


def test_a_least_precision_is_a_number_of_bits() -> None:
    assert selects("bf16+", of(Precision.FP16))
    assert selects("int8+", of(Precision.FP8))
    assert selects("fp8+", of(Precision.INT8))
    assert not selects("int8+", of(Precision.INT4))


def test_an_unknown_precision_satisfies_nothing_but_its_own_name() -> None:
    unknown = of(Precision.UNKNOWN)
    assert selects("unknown", unknown)
    for selector in ("int4+", "int4", "fp32", "unknown+"):
        assert not selects(selector, unknown)


def test_whether_a_selector_asks_for_a_precision() -> None:
    assert asks_for_precision("int8", Q8)
    assert asks_for_precision("int4+", Q8)
    assert asks_for_precision("q8_0", Q8)
    assert asks_for_precision("q8", Q8)
    assert not asks_for_precision("llama.cpp", Q8)
    assert not asks_for_precision("box", Q8)
    assert not asks_for_precision("", Q8)


def test_selectors_in_words() -> None:
    assert describe_selector("int8+") == "with int8 or better"
    assert describe_selector("f16") == "with fp16"
    assert describe_selector("vllm") == "for @vllm"
    assert mismatch("fp16+", Q8) == "runs int8, not fp16 or better"
    assert mismatch("bf16", Q8) == "runs int8, not bf16"
    assert mismatch("bf16", of(Precision.UNKNOWN)) == "has an unknown precision, not bf16"
    assert mismatch("vllm", Q8) == "not meant by @vllm"
