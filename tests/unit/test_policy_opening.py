"""What the engine's cache holds of every prompt, the chat template's opening, is no work that a prediction counts."""

from __future__ import annotations

from typing import Any

import pytest
from fleets import NOW, deployment, samples

from policies.predict import Predictor
from policies.profile import Profile
from policies.types import Estimate, LoadView, Observation, RequestFacts

A = deployment("a")
PREDICTED = Estimate(0.0, 0.0, 0.4, 0.6, 0.1)
FACTS = RequestFacts("smollm2", prompt_tokens=60, expected_output=2)


def predictor() -> Predictor:
    made = Predictor()
    made.measured(A.fingerprint, samples(prefill_per_s=100.0))
    return made


def serve(made: Predictor, *cached: int | None, prompt: int = 200, **fields: Any) -> None:
    for each in cached:
        given: dict[str, Any] = {"new_prompt": True, "predicted": PREDICTED, **fields}
        read = prompt - (each or 0)
        seen = Observation(
            "a", A.fingerprint, prompt, 1, ttft_s=read / 100.0, total_s=read / 100.0, cached_tokens=each, **given
        )
        made.observe(seen, NOW)


def prefill_s(made: Predictor, load: LoadView | None = None) -> float:
    found = made.estimate(FACTS, A, load or LoadView(), NOW)
    assert found is not None
    alone = made.alone(A, FACTS.prompt_tokens, FACTS.expected_output, NOW)
    assert alone is not None
    assert load is not None or alone.prefill_s == found.prefill_s
    return found.prefill_s


def test_an_opening_that_new_prompts_always_find_in_the_cache_is_not_counted() -> None:
    made = predictor()
    assert prefill_s(made) == pytest.approx(0.6)
    serve(made, 24, 26, 24)
    assert prefill_s(made) == pytest.approx(0.36, rel=0.01)


def test_a_slot_that_holds_nothing_yet_does_not_undo_it() -> None:
    made = predictor()
    serve(made, 24, 0, 24, 24)
    assert prefill_s(made) == pytest.approx(0.36, rel=0.01)


def test_a_cache_that_was_switched_off_is_noticed_soon() -> None:
    made = predictor()
    serve(made, 24, 24, 24, 0, 0)
    assert prefill_s(made) == pytest.approx(0.6, rel=0.01)


def test_a_short_prompt_that_was_sent_before_is_not_taken_for_an_opening() -> None:
    made = predictor()
    serve(made, 24)
    serve(made, 58, 58, 58, prompt=59, new_prompt=False)
    serve(made, 24)
    assert prefill_s(made) == pytest.approx(0.36, rel=0.01)


@pytest.mark.parametrize("fields", [{"predicted": None}, {"new_prompt": False}])
def test_measurements_and_prompts_that_were_remembered_say_nothing_of_it(fields: dict[str, Any]) -> None:
    made = predictor()
    serve(made, 150, 150, **fields)
    assert prefill_s(made) == pytest.approx(0.6, rel=0.01)


def test_an_engine_that_does_not_count_what_it_had_cached_is_taken_to_read_everything() -> None:
    made = predictor()
    serve(made, None, None)
    assert prefill_s(made) == pytest.approx(0.6, rel=0.01)


def test_a_longer_prefix_that_is_remembered_counts_instead_of_the_opening() -> None:
    made = predictor()
    serve(made, 24, 24)
    assert prefill_s(made, LoadView(cached_tokens=50)) == pytest.approx(0.1, rel=0.01)


def test_it_outlives_the_process() -> None:
    made = predictor()
    serve(made, 24, 26)
    plain = made.to_dict(A.fingerprint)
    assert plain is not None
    assert Profile.from_dict(plain).opening_tokens == 26
    assert Profile.from_dict(predictor().to_dict(A.fingerprint) or {}).opening_tokens == 0
