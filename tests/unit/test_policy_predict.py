"""Predictions: queue, load, prefill and decode, each from its own cause."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fleets import NOW, deployment, samples

from policies.contention import NOBODY, Beside
from policies.predict import Predictor, within
from policies.types import (
    Deployment,
    Estimate,
    Hardware,
    Health,
    LoadView,
    Observation,
    Operation,
    PairSample,
    RequestFacts,
)

ASK = RequestFacts("smollm2", prompt_tokens=250, expected_output=51)
"""One second of prefill and one of decode, at the speeds of ``samples()``."""


def predict(
    load: LoadView | None = None,
    *,
    slots: int | None = None,
    beside: Beside = NOBODY,
    ask: RequestFacts = ASK,
    pairs: tuple[PairSample, ...] = (),
) -> Estimate:
    which, predictor = deployment("a", slots=slots), Predictor()
    predictor.measured(which.fingerprint, samples(), pairs, which.hardware)
    estimate = predictor.estimate(ask, which, load or LoadView(), NOW, beside)
    assert estimate is not None
    return estimate


def busy(n: int, *, decode: float = 51, prefill: float = 0.0, prefilling: int = 0) -> LoadView:
    return LoadView(
        inflight=n,
        prefilling=prefilling,
        owed_prefill_tokens=prefill,
        owed_decode_tokens=decode,
        context_tokens=250.0 * n,
    )


def test_an_idle_deployment_takes_its_prefill_and_its_decode() -> None:
    estimate = predict()
    assert (estimate.queue_s, estimate.load_s, estimate.cost_to_others_s) == (0.0, 0.0, 0.0)
    assert estimate.prefill_s == pytest.approx(1.0)
    assert estimate.decode_s == pytest.approx(1.0)
    assert estimate.ttft_s == pytest.approx(1.0)
    assert estimate.total_s == pytest.approx(2.0)
    assert estimate.spread == 0.4


def test_nothing_is_predicted_without_a_measurement() -> None:
    assert Predictor().estimate(ASK, deployment("a"), LoadView(), NOW) is None
    assert not Predictor().knows("f")


def test_an_embedding_has_no_decode() -> None:
    ask = RequestFacts("smollm2", operation=Operation.EMBEDDINGS, prompt_tokens=250, expected_output=51)
    assert predict(ask=ask).total_s == pytest.approx(1.0)


def test_with_one_slot_a_request_waits_for_all_that_those_ahead_owe() -> None:
    estimate = predict(busy(2, decode=75, prefill=250, prefilling=1), slots=1)
    assert estimate.queue_s == pytest.approx(1.0 + 75 * 0.02)
    assert estimate.prefill_s == pytest.approx(1.0)
    assert estimate.decode_s == pytest.approx(1.0)


def test_who_joins_a_batch_waits_for_its_step_whatever_the_prompt() -> None:
    step_s = 0.02 * (1.0 + 3 * 0.3)
    short = RequestFacts("smollm2", prompt_tokens=25, expected_output=51)
    for ask in (ASK, short):
        alone = predict(ask=ask)
        joined = predict(busy(3, decode=300), ask=ask)
        assert joined.queue_s == 0.0
        assert joined.ttft_s - alone.ttft_s == pytest.approx(0.8 * step_s)
        assert joined.total_s - alone.total_s > 0.8 * step_s
    measured = PairSample("same", "decoding", prefill_factor=1.5, decode_factor=1.3)
    slowed = predict(busy(3, decode=300), pairs=(measured,))
    assert slowed.ttft_s - predict().ttft_s == pytest.approx(3 * 0.5 * predict().prefill_s + 0.8 * step_s)


def test_while_a_slot_is_free_nobody_waits() -> None:
    assert predict(busy(3, decode=300), slots=4).queue_s == 0.0
    first = predict(busy(4, decode=400), slots=4).queue_s
    assert 0.0 < first < 400 * 0.02
    assert predict(busy(8, decode=800), slots=4).queue_s > 2 * first


def test_an_engine_that_batches_freely_has_no_queue_but_decodes_slower() -> None:
    estimate = predict(busy(3, decode=3000))
    assert estimate.queue_s == 0.0
    assert estimate.decode_s == pytest.approx(1.0 * (1 + 3 * 0.3))


def test_neighbours_slow_only_until_they_are_done() -> None:
    nearly_done, long = predict(busy(1, decode=5)), predict(busy(1, decode=5000))
    assert nearly_done.decode_s == pytest.approx(1.0 + 0.3 * 5 * 0.02)
    assert long.decode_s == pytest.approx(1.3)


def test_one_that_prefills_in_the_same_engine_stalls_the_decode_for_about_its_prefill() -> None:
    estimate = predict(busy(1, decode=1, prefill=250, prefilling=1))
    assert 2.5 < estimate.total_s < 4.5


def test_other_engines_on_the_same_cores_slow_both_phases() -> None:
    estimate = predict(beside=Beside(1.0, 0.0, 1000.0, 0.0))
    assert estimate.prefill_s == pytest.approx(3.93)
    assert estimate.decode_s == pytest.approx(4.80)
    assert predict(beside=Beside(0.0, 1.0, 0.0, 1000.0)).prefill_s == pytest.approx(3.11)


def test_measured_pairs_take_the_place_of_the_start_values() -> None:
    pairs = (PairSample("other", "decoding", 1.5, 2.0),)
    estimate = predict(beside=Beside(1.0, 0.0, 1000.0, 0.0), pairs=pairs)
    assert (estimate.prefill_s, estimate.decode_s) == (pytest.approx(1.5), pytest.approx(2.0))


def test_what_a_choice_costs_others_is_the_delay_of_those_that_run() -> None:
    assert predict(busy(1, decode=5000)).cost_to_others_s > 1.0
    assert predict(busy(1, decode=2)).cost_to_others_s < 1.2
    assert predict(busy(2, decode=100), slots=1).cost_to_others_s == 0.0


def test_a_cold_model_costs_its_load_and_others_the_one_it_displaces() -> None:
    cold = predict(LoadView(resident=False, load_s=7.0))
    assert (cold.load_s, cold.cost_to_others_s) == (7.0, 7.0)
    assert predict(LoadView(resident=False)).load_s == 10.0
    loading = predict(LoadView(Health.LOADING, load_s=3.0))
    assert (loading.load_s, loading.cost_to_others_s) == (3.0, 0.0)
    assert loading.ttft_s == pytest.approx(4.0)


def test_tokens_in_the_cache_are_not_read_again() -> None:
    assert predict(LoadView(cached_tokens=200)).prefill_s == pytest.approx(0.2, rel=0.02)
    assert predict(LoadView(cached_tokens=999)).prefill_s > 0.0


def test_what_others_sent_to_the_engine_counts_while_its_gauges_are_fresh() -> None:
    fresh = predict(LoadView(foreign_running=2), slots=1)
    old = predict(LoadView(foreign_running=2, age_s=60.0), slots=1)
    assert fresh.queue_s == pytest.approx(2 * 64 * 0.02)
    assert 0.0 < old.queue_s < fresh.queue_s
    assert predict(LoadView(foreign_waiting=1), slots=1).queue_s > predict(LoadView(foreign_running=1), slots=1).queue_s


def work_of(which: Deployment, load: LoadView, predictor: Predictor) -> Beside:
    return predictor.work(which, load, NOW)


def test_work_is_what_a_deployment_is_to_others_on_its_hardware() -> None:
    which, predictor = deployment("a", slots=2), Predictor()
    assert work_of(which, LoadView(), predictor) is NOBODY
    unknown = work_of(which, busy(1, decode=100), predictor)
    assert unknown == Beside(1, 0, 3.0, 0.0)
    predictor.measured(which.fingerprint, samples())
    assert work_of(which, busy(1, decode=100), predictor) == (1, 0, pytest.approx(2.0), 0.0)
    crowded = work_of(which, busy(9, decode=100, prefill=500, prefilling=4), predictor)
    assert crowded == (5, 4, pytest.approx(2.0), pytest.approx(2.0))
    assert within(crowded, 2) == (2, 2, crowded.decode_s, crowded.prefill_s)


def test_served_requests_correct_a_prediction() -> None:
    which, predictor = deployment("a"), Predictor()
    seen = Observation("a", which.fingerprint, 250, 51, ttft_s=1.5, total_s=2.5, cached_tokens=0)
    predictor.observe(seen, NOW)
    assert not predictor.knows(which.fingerprint)
    predictor.measured(which.fingerprint, samples())
    for _ in range(25):
        predictor.observe(seen, NOW)
    estimate = predictor.estimate(ASK, which, LoadView(), NOW)
    assert estimate is not None
    assert estimate.prefill_s == pytest.approx(1.5, rel=0.02)
    assert estimate.decode_s == pytest.approx(1.0, rel=0.02)
    assert estimate.spread < 0.4


def test_a_new_measurement_replaces_the_corrections_of_the_old_one_but_not_the_pairs() -> None:
    predictor = Predictor()
    predictor.measured("f", samples(), [PairSample("other", "decoding", 2.0, 2.0)])
    for _ in range(9):
        predictor.observe(Observation("a", "f", 250, 1, ttft_s=3.0, total_s=3.0, cached_tokens=0), NOW)
    known = predictor.profile("f")
    assert known is not None
    assert known.speed.prefill_s(250, NOW) > 1.5
    predictor.measured("f", samples(), [PairSample("other", "prefilling", 2.0, 2.0)])
    again = predictor.profile("f")
    assert again is not None
    assert again.speed.prefill_s(250, NOW) > 1.5
    predictor.measured("f", samples(260.0))
    newest = predictor.profile("f")
    assert newest is not None
    assert newest.speed.prefill_s(260, NOW) == pytest.approx(1.0)
    assert newest.contention is again.contention


def total_s(predictor: Predictor, which: Deployment) -> float:
    estimate = predictor.estimate(ASK, which, LoadView(), NOW)
    assert estimate is not None
    return estimate.total_s


def slowed(served: Deployment, *others: Deployment, by: float = 1.5) -> Predictor:
    """What is known of all of them after one of them served 25 requests in so many times what was measured."""
    predictor = Predictor()
    for each in (served, *others):
        predictor.measured(each.fingerprint, samples(), hardware=each.hardware)
        assert total_s(predictor, each) == pytest.approx(2.0)
    for _ in range(25):
        seen = Observation(served.id, served.fingerprint, 250, 51, ttft_s=by, total_s=2.0 * by, cached_tokens=0)
        predictor.observe(seen, NOW)
    return predictor


def test_a_deployment_that_slows_says_a_part_of_it_of_all_on_its_machine_and_nothing_of_others() -> None:
    served, same, elsewhere = deployment("a", host="pc"), deployment("b", host="pc"), deployment("c", host="far")
    predictor = slowed(served, same, elsewhere)
    assert total_s(predictor, served) == pytest.approx(3.0, rel=0.02)
    assert 2.05 < total_s(predictor, same) < 2.5, "more would keep an engine that is slow by itself from being left"
    assert total_s(predictor, elsewhere) == pytest.approx(2.0)


def test_hosted_deployments_have_no_machine_in_common() -> None:
    served, other = (replace(deployment(name), hardware=Hardware("hosted")) for name in ("a", "b"))
    assert total_s(slowed(served, other), other) == pytest.approx(2.0)


def test_the_machines_part_is_taken_back_by_those_that_it_is_not_true_of() -> None:
    served, other = deployment("a", host="pc"), deployment("b", host="pc")
    predictor = slowed(served, other)
    for _ in range(40):
        for which, took in ((served, 1.5), (other, 1.0)):
            seen = Observation(which.id, which.fingerprint, 250, 51, ttft_s=took, total_s=2.0 * took, cached_tokens=0)
            predictor.observe(seen, NOW)
    assert total_s(predictor, served) == pytest.approx(3.0, rel=0.05)
    assert total_s(predictor, other) == pytest.approx(2.0, rel=0.05)


def test_what_is_measured_on_a_slow_machine_is_not_thought_slower_still() -> None:
    served, new = deployment("a", host="pc"), deployment("b", host="pc")
    predictor = slowed(served)
    predictor.measured(new.fingerprint, samples(), hardware=new.hardware)
    assert total_s(predictor, new) == pytest.approx(2.0)
    kept = predictor.to_dict(served.fingerprint)
    assert kept is not None
    predictor.restore(served.fingerprint, kept)
    assert total_s(predictor, served) == pytest.approx(3.0, rel=0.02)


def test_what_is_known_survives_a_store() -> None:
    predictor, other = Predictor(), Predictor()
    predictor.measured("f", samples())
    predictor.observe(Observation("a", "f", 250, 51, ttft_s=1.5, total_s=2.5, cached_tokens=0), NOW)
    other.restore("f", json.loads(json.dumps(predictor.to_dict("f"))))
    assert other.to_dict("f") == predictor.to_dict("f")
    assert predictor.to_dict("g") is None
    with pytest.raises(KeyError):
        other.restore("g", {})


def test_the_number_of_fingerprints_is_bounded() -> None:
    predictor = Predictor()
    for i in range(1100):
        predictor.measured(f"f{i}", samples())
    assert not predictor.knows("f0")
    assert predictor.knows("f1099")
    assert sum(predictor.knows(f"f{i}") for i in range(1100)) == 1024
