"""Which deployments a command's words mean."""

from __future__ import annotations

import pytest
from measurements import deployment

from gateway.reach import NoneSelected, chosen
from policies.types import Precision

FLEET = (
    deployment("a", model="smol", precision=Precision.BF16, engine="vllm", scheme=""),
    deployment("b", model="smol", precision=Precision.INT4),
    deployment("c", model="large", precision=Precision.INT8, scheme="Q8_0"),
    deployment("api", model="large", engine="hosted", hosted=True),
)


def ids(*words: str) -> list[str]:
    return [each.id for each in chosen(words, FLEET)]


def test_without_words_all_are_meant_but_hosted_apis() -> None:
    assert ids() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("b", ["b"]),
        ("smol", ["a", "b"]),
        ("smol@int4", ["b"]),
        ("smol@vllm", ["a"]),
        ("int8+", ["a", "c"]),
        ("Q8_0", ["c"]),
        ("api", ["api"]),
        ("large@api", ["api"]),
    ],
)
def test_a_word_is_an_id_a_model_or_a_selector(word: str, meant: list[str]) -> None:
    assert ids(word) == meant


def test_several_words_mean_each_deployment_once() -> None:
    assert ids("smol", "b", "c") == ["a", "b", "c"]


def test_a_word_that_means_nobody_says_what_there_is() -> None:
    with pytest.raises(NoneSelected, match="'smoll' means no deployment that runs; there is smol"):
        ids("smoll")


def test_no_engine_at_all_is_said_plainly() -> None:
    with pytest.raises(NoneSelected, match="no engine serves a model"):
        chosen((), ())
