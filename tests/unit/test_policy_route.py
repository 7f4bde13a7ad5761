"""Decisions on small fleets: who is chosen, by which rule, in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleets import NOW, deployment, fleet, samples

from policies.deadline import misses_deadline
from policies.ledger import Ledger
from policies.roster import roster
from policies.route import route
from policies.types import (
    Capability,
    Decision,
    Deployment,
    Hardware,
    Health,
    LoadView,
    Objective,
    Observation,
    Operation,
    PairSample,
    Precision,
    Quality,
    RequestFacts,
    Usual,
)

ASK = RequestFacts("smollm2", prompt_tokens=300, prompt_tokens_least=100, expected_output=48)
F16 = deployment("f16", Precision.FP16)
Q8 = deployment("q8", Precision.INT8)
Q4 = deployment("q4", Precision.INT4)
FAST, SLOW = (1000.0, 100.0), (100.0, 10.0)


def ids(decision: Decision) -> list[str]:
    return [candidate.deployment.id for candidate in decision.candidates]


def codes(decision: Decision) -> dict[str, str]:
    return {rejection.deployment.id: rejection.code for rejection in decision.rejected}


def reason(decision: Decision) -> str:
    assert decision.chosen is not None
    return decision.chosen.reason


# --- speed


def test_the_one_that_finishes_first_is_chosen_and_the_reason_has_both_times() -> None:
    a, b = deployment("a"), deployment("b")
    decision = route(ASK, fleet({a: SLOW, b: FAST}))
    assert ids(decision) == ["b", "a"]
    assert decision.rule == "fastest"
    assert reason(decision) == "finishes first: 0.77 s predicted, a 7.70 s"
    assert str(decision) == "b (fp16): finishes first: 0.77 s predicted, a 7.70 s"


def test_a_long_prompt_and_a_long_answer_go_to_different_engines() -> None:
    reader, writer = deployment("reader"), deployment("writer")
    both = fleet({reader: (800.0, 20.0), writer: (100.0, 60.0)})
    assert ids(route(replace(ASK, prompt_tokens=2000, expected_output=16), both))[0] == "reader"
    assert ids(route(replace(ASK, prompt_tokens=32, expected_output=400), both))[0] == "writer"


def test_short_requests_do_not_make_an_engine_look_slow() -> None:
    """Prefill is no part of tokens per second: after a hundred tiny answers the faster one still is the faster one."""
    a, b = deployment("a"), deployment("b")
    both = fleet({a: FAST, b: (900.0, 90.0)})
    assert ids(route(replace(ASK, expected_output=2), both))[0] == "a"
    assert ids(route(replace(ASK, expected_output=500), both))[0] == "a"


def test_ttft_asks_for_the_first_token_only() -> None:
    reader, writer = deployment("reader"), deployment("writer")
    both = fleet({reader: (800.0, 20.0), writer: (100.0, 60.0)})
    wants = replace(ASK, expected_output=400)
    assert ids(route(wants, both))[0] == "writer"
    decision = route(replace(wants, objective=Objective.TTFT), both)
    assert ids(decision)[0] == "reader"
    assert reason(decision) == "first token first: 0.38 s predicted, writer 3.00 s"


def test_throughput_counts_all_that_the_choice_costs_others_and_latency_half() -> None:
    busy = LoadView(inflight=3, owed_decode_tokens=600, context_tokens=600)
    crowded, empty = deployment("crowded"), deployment("empty")
    both = fleet({crowded: (300.0, 60.0), empty: (160.0, 34.0)}, {"crowded": busy})
    assert ids(route(replace(ASK, objective=Objective.TTFT), both))[0] == "crowded"
    decision = route(replace(ASK, objective=Objective.THROUGHPUT), both)
    assert ids(decision)[0] == "empty"
    assert reason(decision).startswith("delays others less: by 0.000 s, crowded by ")
    mine_only = replace(both, cost_to_others=0.0)
    assert ids(route(ASK, mine_only))[0] == "crowded"
    assert ids(route(ASK, replace(both, cost_to_others=5.0)))[0] == "empty"


def test_equal_predictions_are_decided_by_name() -> None:
    decision = route(ASK, fleet({deployment("b"): FAST, deployment("a"): FAST}))
    assert ids(decision) == ["a", "b"]
    assert reason(decision) == "as fast as b (0.77 s predicted), first by name"


def test_the_reason_tells_how_many_are_ahead() -> None:
    a, b = deployment("a", slots=1), deployment("b", slots=1)
    queue = LoadView(inflight=2, owed_decode_tokens=96, context_tokens=300)
    decision = route(ASK, fleet({a: FAST, b: FAST}, {"a": queue}))
    assert ids(decision) == ["b", "a"]
    assert reason(decision) == "finishes first: 0.77 s predicted, a 1.73 s (busy: 2 ahead)"


# --- load


def test_a_request_counts_at_once_so_that_the_next_goes_elsewhere() -> None:
    """Herding: both look idle at the last poll, but our own ledger knows better."""
    a, b = deployment("a", slots=1), deployment("b", slots=1)
    both, ledger = fleet({a: FAST, b: (950.0, 95.0)}), Ledger()
    ledger.place((a, b), 0.0)
    taken = []
    for _ in range(4):
        loads = {d.id: LoadView(Health.UP, *ledger.view(d.id)) for d in (a, b)}
        taken.append(ids(route(ASK, replace(both, loads=loads)))[0])
        ledger.open(taken[-1], prefill_tokens=300, decode_tokens=48, context_tokens=300, now=0.0)
    assert taken == ["a", "b", "a", "b"]


def test_an_idle_engine_on_busy_cores_loses_against_joining_the_busy_one() -> None:
    """Measured: beside another engine that decodes, TTFT is four times and TPOT five times what it is alone."""
    busy, idle = deployment("busy", host="pc", slots=4), deployment("idle", host="pc", slots=4)
    decoding = LoadView(inflight=1, owed_decode_tokens=200, context_tokens=300)
    decision = route(ASK, fleet({busy: (222.0, 48.0), idle: (222.0, 48.0)}, {"busy": decoding}))
    assert ids(decision) == ["busy", "idle"]
    joined, apart = (c.estimate for c in decision.candidates)
    assert joined is not None
    assert apart is not None
    assert joined.total_s < 3.0
    assert apart.total_s > 2 * joined.total_s
    elsewhere = replace(idle, hardware=Hardware("other", frozenset({"other/cpu"})))
    assert ids(route(ASK, fleet({busy: (222.0, 48.0), elsewhere: (222.0, 48.0)}, {"busy": decoding})))[0] == "idle"


def test_another_models_work_on_the_same_cores_counts_too() -> None:
    here, there = deployment("here", host="pc"), deployment("there", host="box")
    neighbour = deployment("neighbour", host="pc", model="other")
    members = {here: FAST, there: (700.0, 70.0), neighbour: SLOW}
    assert ids(route(ASK, fleet(members)))[0] == "here"
    at_work = {"neighbour": LoadView(inflight=1, owed_decode_tokens=500)}
    assert ids(route(ASK, fleet(members, at_work)))[0] == "there"


def test_a_cold_models_load_time_counts_and_so_does_that_of_the_one_it_displaces() -> None:
    warm, cold = deployment("warm"), deployment("cold")
    view = fleet({warm: SLOW, cold: FAST}, {"cold": LoadView(resident=False, load_s=20.0)})
    decision = route(ASK, view)
    assert ids(decision) == ["warm", "cold"]
    assert reason(decision) == "finishes first: 7.70 s predicted, cold 21 s (loads 20 s)"
    soon = replace(view, loads={"cold": LoadView(resident=False, load_s=5.0)})
    assert ids(route(ASK, soon))[0] == "warm"
    assert ids(route(ASK, replace(soon, loads={"cold": LoadView(resident=False, load_s=2.0)})))[0] == "cold"


def test_a_loading_deployment_is_waited_for_only_when_that_is_still_faster() -> None:
    ready, loading = deployment("ready"), deployment("loading")
    for left_s, first in ((1.0, "loading"), (30.0, "ready")):
        loads = {"loading": LoadView(Health.LOADING, load_s=left_s)}
        assert ids(route(ASK, fleet({ready: SLOW, loading: FAST}, loads)))[0] == first


def test_an_engine_that_asked_to_be_left_alone_comes_after_all_others() -> None:
    a, b = deployment("a"), deployment("b")
    decision = route(ASK, fleet({a: FAST, b: SLOW}, {"a": LoadView(retry_after_s=3.0)}))
    assert ids(decision) == ["b", "a"]
    assert reason(decision) == "a comes later: it asked to be left alone for 3.00 s"
    assert decision.candidates[1].reason == "0.77 s predicted; it asked to be left alone for 3.00 s"
    assert ids(route(ASK, fleet({a: FAST}, {"a": LoadView(retry_after_s=3.0)}))) == ["a"]


# --- staying where it is


def test_within_the_spread_the_holder_of_the_prefix_stays() -> None:
    a, b = deployment("a"), deployment("b")
    view = fleet(
        {a: (1000.0, 120.0), b: (640.0, 108.0)}, {"b": LoadView(cached_tokens=128)}, last_used={"smollm2": "a"}
    )
    decision = route(ASK, view)
    assert ids(decision) == ["b", "a"]
    assert decision.rule == "prefix"
    assert reason(decision) == "holds 128 tokens of the prompt: 0.71 s predicted, a 0.69 s is within the spread"
    far = replace(view, loads={"b": LoadView(cached_tokens=1)})
    assert ids(route(ASK, far))[0] == "a"


def test_a_prefix_makes_prefill_shorter() -> None:
    a = deployment("a")
    new = route(ASK, fleet({a: FAST})).candidates[0].estimate
    known = route(ASK, fleet({a: FAST}, {"a": LoadView(cached_tokens=200)})).candidates[0].estimate
    assert new is not None
    assert known is not None
    assert known.prefill_s < 0.5 * new.prefill_s
    assert known.decode_s == new.decode_s


def test_within_the_spread_the_one_used_last_stays() -> None:
    members = {deployment("a"): (1500.0, 92.0), deployment("b"): (1000.0, 120.0)}
    assert ids(route(ASK, fleet(members))) == ["b", "a"]
    decision = route(ASK, fleet(members, last_used={"smollm2": "a"}))
    assert (ids(decision), decision.rule) == (["a", "b"], "last-used")
    assert reason(decision) == "used last: 0.71 s predicted, b 0.69 s is within the spread"


def test_who_was_used_last_gives_way_to_one_that_is_faster_in_every_respect() -> None:
    a, b = deployment("a"), deployment("b")
    decision = route(ASK, fleet({a: (1000.0, 100.0), b: (990.0, 99.0)}, last_used={"smollm2": "b"}))
    assert (ids(decision)[0], decision.rule) == ("a", "fastest")


def test_who_was_used_last_gives_way_beyond_the_spread() -> None:
    a, b = deployment("a"), deployment("b")
    decision = route(ASK, fleet({a: (100.0, 100.0), b: (1000.0, 20.0)}, last_used={"smollm2": "a"}))
    assert ids(decision)[0] == "b"


# --- precision


def test_nobody_who_did_not_ask_for_it_gets_int4_or_int8_while_16_bits_serve() -> None:
    decision = route(ASK, fleet({F16: SLOW, Q8: FAST, Q4: FAST}))
    assert ids(decision) == ["f16"]
    assert codes(decision) == {"q4": "precision", "q8": "precision"}
    assert decision.rule == "only"
    assert reason(decision).startswith("only one that can serve this; q4: runs int4 (quality untested) and f16 serves")


def test_a_quantised_one_that_passed_its_quality_regression_competes() -> None:
    good = replace(Q8, quality=Quality.PASSED)
    assert ids(route(ASK, fleet({F16: SLOW, good: FAST, Q4: FAST}))) == ["q8", "f16"]
    assert ids(route(ASK, fleet({F16: SLOW, replace(Q8, quality=Quality.FAILED): FAST}))) == ["f16"]


def test_a_quantised_one_that_passed_has_to_be_faster_by_a_margin_and_the_reason_says_so() -> None:
    good8, good4 = replace(Q8, quality=Quality.PASSED), replace(Q4, quality=Quality.BASELINE)
    close = route(ASK, fleet({F16: (1000.0, 100.0), good8: (1050.0, 105.0)}))
    assert ids(close)[0] == "f16"
    assert reason(close) == (
        "best precision first, fp16: 0.77 s predicted, q8 in int8 0.73 s, not faster by the margin that int8 needs"
    )
    far = route(ASK, fleet({F16: (1000.0, 100.0), good8: (1200.0, 120.0)}))
    assert ids(far)[0] == "q8"
    assert reason(far) == "int8 passed its quality test and is 17% faster: 0.64 s predicted, f16 in fp16 0.77 s"
    assert ids(route(ASK, fleet({F16: (1000.0, 100.0), good4: (1200.0, 120.0)})))[0] == "f16"
    lowest = route(ASK, fleet({F16: (1000.0, 100.0), good4: (1400.0, 140.0)}))
    assert reason(lowest) == "int4 is the baseline and is 29% faster: 0.55 s predicted, f16 in fp16 0.77 s"
    assert (
        ids(route(ASK, replace(fleet({F16: (1000.0, 100.0), good8: (1050.0, 105.0)}), margins=(0.0, 0.0))))[0] == "q8"
    )


def test_a_precision_that_was_asked_for_needs_no_margin() -> None:
    view = fleet({F16: (1000.0, 100.0), Q8: (1050.0, 105.0)})
    assert ids(route(replace(ASK, selector="int8+"), view))[0] == "q8"


def test_among_those_that_tie_a_stable_one_comes_first() -> None:
    a, b = deployment("a"), deployment("b", stable=True)
    decision = route(ASK, fleet({a: (1000.0, 100.0), b: (980.0, 98.0)}))
    assert (ids(decision)[0], decision.rule) == ("b", "stable")
    assert reason(decision) == "stable by its soak: 0.79 s predicted, a 0.77 s is within the spread"
    assert ids(route(ASK, fleet({a: (1000.0, 100.0), b: (800.0, 80.0)})))[0] == "a"
    used = fleet({a: (980.0, 98.0), b: (1000.0, 100.0)}, last_used={"smollm2": "a"})
    assert ids(route(ASK, used))[0] == "b"


def test_a_deadline_puts_those_who_will_miss_it_last() -> None:
    reader, writer = deployment("reader"), deployment("writer")
    view = fleet({reader: (800.0, 20.0), writer: (100.0, 60.0)})
    soon = replace(ASK, expected_output=400, objective=Objective.TTFT)
    assert ids(route(soon, view))[0] == "reader"
    decision = route(replace(soon, deadline_s=12.0), view)
    assert ids(decision)[0] == "writer"
    assert reason(decision) == "reader comes later: it will probably miss the deadline"
    assert misses_deadline(decision, replace(soon, deadline_s=12.0)) is None
    best = misses_deadline(route(replace(soon, deadline_s=1.0), view), replace(soon, deadline_s=1.0))
    assert best is not None
    assert best.total_s == min(c.estimate.total_s for c in decision.candidates if c.estimate)
    assert misses_deadline(route(soon, view), soon) is None


def test_the_usual_company_sends_a_request_to_where_many_can_be_served() -> None:
    """The engine that is quickest alone has one slot; when three usually run, they had better share the other one's
    batch."""
    quick, wide = deployment("quick", slots=1), deployment("wide")
    few = [PairSample("same", "decoding", 1.0, 1.02), PairSample("same", "prefilling", 1.0, 1.1)]
    view = fleet({quick: (1000.0, 100.0), wide: (800.0, 80.0)}, pairs=few)
    assert ids(route(ASK, view))[0] == "quick"
    crowd = {"quick": Usual(2.0, 1.0), "wide": Usual(2.0, 1.0)}
    assert ids(route(ASK, replace(view, usual=crowd)))[0] == "wide"


def test_at_least_as_many_as_are_there_are_taken_to_come_later() -> None:
    one, two = deployment("one"), deployment("two", slots=2)
    view = fleet({one: (1000.0, 100.0), two: (1000.0, 100.0)}, pairs=[PairSample("same", "prefilling", 1.0, 5.0)])

    def later_s(which: Deployment, there: int) -> float:
        load = LoadView(inflight=there)
        company = view.predictor.estimate(ASK, which, load, NOW, usual=Usual(0.75, 0.25))
        nobody = view.predictor.estimate(ASK, which, load, NOW)
        assert company is not None
        assert nobody is not None
        return company.total_s - nobody.total_s

    alone_s = later_s(one, 0)
    assert alone_s > 0.0
    assert [later_s(one, there) / alone_s for there in (1, 3)] == pytest.approx([1.0, 3.0])
    assert later_s(two, 5) == pytest.approx(later_s(two, 0))  # one runs beside it, four wait


def test_a_conversation_moves_when_its_further_turns_will_repay_the_reading() -> None:
    holder, better = deployment("holder"), deployment("better")
    view = fleet({holder: (1000.0, 60.0), better: (1000.0, 100.0)}, {"holder": LoadView(cached_tokens=1900)})
    turn = replace(ASK, prompt_tokens=2000)
    assert ids(route(turn, view))[0] == "holder"
    moved = route(replace(turn, further=8.0), view)
    assert ids(moved)[0] == "better"
    assert reason(moved) == "best for the turns that will follow: 2.52 s predicted now, holder 0.89 s"


def test_the_best_precision_that_is_up_serves_when_the_16_bit_one_is_down() -> None:
    down = {"f16": LoadView(Health.DOWN, note="connection refused")}
    decision = route(ASK, fleet({F16: SLOW, Q8: SLOW, Q4: FAST}, down))
    assert ids(decision) == ["q8"]
    assert codes(decision) == {"f16": "down", "q4": "precision"}
    assert decision.rule == "best-precision"
    assert reason(decision) == "int8 is the best that can serve this now (f16 is down)"


def test_the_best_precision_there_is_serves_when_there_is_no_16_bit_one() -> None:
    decision = route(ASK, fleet({Q8: SLOW, Q4: FAST}))
    assert ids(decision) == ["q8"]
    assert reason(decision) == "int8 is the best that is up"
    fp8 = deployment("fp8", Precision.FP8)
    decision = route(ASK, fleet({Q8: SLOW, fp8: FAST, Q4: FAST}))
    assert ids(decision) == ["fp8", "q8"]
    assert reason(decision) == "fp8 is the best that is up; finishes first: 0.77 s predicted, q8 7.70 s"


def test_an_unknown_precision_serves_when_nothing_better_is_known() -> None:
    mystery = deployment("mystery", Precision.UNKNOWN)
    assert ids(route(ASK, fleet({mystery: FAST, Q4: SLOW}))) == ["q4"]
    decision = route(ASK, fleet({mystery: FAST}))
    assert reason(decision) == "unknown precision is all that is up"


def test_a_precision_that_failed_its_quality_regression_comes_after_untested_ones() -> None:
    failed = replace(Q8, quality=Quality.FAILED)
    assert ids(route(ASK, fleet({failed: FAST, Q4: SLOW}))) == ["q4"]
    assert ids(route(ASK, fleet({failed: FAST}))) == ["q8"]


def test_an_int8_that_is_up_serves_while_the_16_bit_one_loads_for_long() -> None:
    for left_s, first in ((0.1, "f16"), (30.0, "q8")):
        decision = route(ASK, fleet({F16: FAST, Q8: SLOW}, {"f16": LoadView(Health.LOADING, load_s=left_s)}))
        assert ids(decision)[0] == first
    assert reason(decision) == "int8 is the best that is up; finishes first: 7.70 s predicted, f16 31 s (loads 30 s)"


def test_a_context_that_only_the_int8_one_has_makes_it_serve() -> None:
    small = deployment("small", Precision.FP16, context=1024)
    decision = route(replace(ASK, prompt_tokens=3000, counted=True), fleet({small: FAST, Q8: SLOW}))
    assert ids(decision) == ["q8"]
    assert reason(decision) == "int8 is the best that can serve this now (small has too little context)"


def test_a_least_precision_admits_all_that_have_it() -> None:
    decision = route(replace(ASK, selector="int8+"), fleet({F16: SLOW, Q8: FAST, Q4: FAST}))
    assert ids(decision) == ["q8", "f16"]
    assert [r.reason for r in decision.rejected] == ["runs int4, not int8 or better"]
    decision = route(replace(ASK, selector="int8+"), fleet({Q8: FAST, Q4: FAST}))
    assert reason(decision) == "only deployment with int8 or better; 0.77 s predicted"


def test_an_engine_kind_does_not_ask_for_a_precision_but_a_precision_scheme_or_id_does() -> None:
    scheme = replace(Q4, scheme="Q4_K_M")
    view = fleet({F16: SLOW, scheme: FAST})
    assert ids(route(replace(ASK, selector="llama.cpp"), view)) == ["f16"]
    for asked in ("int4", "Q4_K_M", "q4"):
        assert ids(route(replace(ASK, selector=asked), view)) == ["q4"]


# --- who may not


def test_each_rejection_says_why_in_words() -> None:
    plain = frozenset({Capability.CHAT})
    members = {
        deployment("broken"): FAST,
        deployment("down"): FAST,
        deployment("simple", capabilities=plain): FAST,
        deployment("small", context=256): FAST,
        deployment("good"): FAST,
    }
    loads = {"down": LoadView(Health.DOWN, note="connection refused"), "broken": LoadView(breaker_open=True)}
    asked = replace(ASK, prompt_tokens_least=260, needs=frozenset({Capability.TOOLS, Capability.VISION}))
    decision = route(asked, fleet(members, loads))
    assert {r.deployment.id: (r.code, r.reason) for r in decision.rejected} == {
        "broken": ("breaker", "failed repeatedly and is being left alone"),
        "down": ("down", "down: connection refused"),
        "simple": ("capability", "cannot do tools, vision"),
        "small": ("context", "the prompt has at least 260 tokens, its context is 256"),
    }
    assert reason(decision).startswith("only one that can serve this; broken: failed repeatedly")


def test_when_nobody_can_the_decision_lists_them_all() -> None:
    decision = route(
        replace(ASK, operation=Operation.EMBEDDINGS), fleet({deployment("a", capabilities=frozenset()): FAST})
    )
    assert decision.chosen is None
    assert str(decision) == "nobody can serve this: a: cannot do embeddings"


def test_an_unknown_model_has_neither_candidates_nor_rejections() -> None:
    decision = route(replace(ASK, model="gpt"), fleet({F16: FAST}))
    assert (decision.candidates, decision.rejected) == ((), ())
    assert str(decision) == "nobody can serve this: no deployment has this model"


def test_a_pin_takes_that_deployment_whatever_its_precision_or_speed() -> None:
    decision = route(replace(ASK, pinned="q4"), fleet({F16: FAST, Q4: SLOW}))
    assert ids(decision) == ["q4"]
    assert (decision.rule, reason(decision)) == ("pinned", "pinned by the caller; 7.70 s predicted")
    assert codes(decision) == {"f16": "pinned"}
    nobody = route(replace(ASK, pinned="gone"), fleet({F16: FAST}))
    assert [r.reason for r in nobody.rejected] == ["the caller pinned gone"]


# --- context


def test_a_counted_prompt_that_leaves_no_room_for_an_answer_is_rejected() -> None:
    exact = deployment("exact", context=300)
    assert codes(route(replace(ASK, counted=True), fleet({exact: FAST}))) == {"exact": "context"}
    assert ids(route(replace(ASK, prompt_tokens=299, counted=True), fleet({exact: FAST}))) == ["exact"]
    embed = replace(ASK, counted=True, operation=Operation.EMBEDDINGS)
    assert ids(route(embed, fleet({exact: FAST}))) == ["exact"]


def test_an_estimated_prompt_that_may_not_fit_comes_last_and_says_so() -> None:
    small, large = deployment("small", context=256), deployment("large", context=8192)
    decision = route(ASK, fleet({small: FAST, large: None}))
    assert ids(decision) == ["large", "small"]
    assert reason(decision) == "small comes later: the prompt may not fit its context of 256"
    assert decision.candidates[1].reason == "0.77 s predicted; the prompt may not fit its context of 256"


def test_the_one_with_room_for_the_whole_answer_comes_first_and_the_other_still_serves() -> None:
    small, large = deployment("small", context=512), deployment("large")
    asked = replace(ASK, max_output=400)
    decision = route(asked, fleet({small: FAST, large: SLOW}))
    assert ids(decision) == ["large", "small"]
    assert reason(decision) == "small comes later: its context of 512 may cut the answer"
    assert ids(route(asked, fleet({small: FAST}))) == ["small"]
    assert ids(route(replace(ASK, max_output=100), fleet({small: FAST, large: SLOW})))[0] == "small"


# --- not measured, hosted


def test_an_unmeasured_deployment_serves_only_after_the_measured_ones() -> None:
    new = deployment("new")
    decision = route(ASK, fleet({F16: SLOW, new: None}))
    assert ids(decision) == ["f16", "new"]
    assert reason(decision) == "new comes later: not measured yet"
    assert decision.candidates[1].estimate is None
    assert ids(route(replace(ASK, selector="new"), fleet({F16: SLOW, new: None}))) == ["new"]


def test_among_unmeasured_ones_the_best_precision_then_the_least_busy_then_the_name_decides() -> None:
    a, b, c = deployment("a"), deployment("b"), deployment("c", Precision.FP32)
    view = fleet({a: None, b: None, c: None})
    decision = route(ASK, view)
    assert (decision.rule, ids(decision)) == ("unmeasured", ["c", "a", "b"])
    assert reason(decision) == "nothing is measured yet: best precision fp32, a has fp16"
    pair = fleet({a: None, b: None}, {"a": LoadView(inflight=2, owed_decode_tokens=10)})
    assert reason(route(ASK, pair)) == "nothing is measured yet: 0 in flight, a has 2"
    assert reason(route(ASK, fleet({a: None, b: None}))) == "nothing is measured yet: first by name, before b"
    assert reason(route(ASK, fleet({a: None}))) == "only deployment of smollm2 (not measured yet)"


def test_an_unmeasured_one_that_is_ready_comes_before_a_better_one_that_has_to_load() -> None:
    a, c = deployment("a"), deployment("c", Precision.FP32)
    decision = route(ASK, fleet({a: None, c: None}, {"c": LoadView(Health.LOADING)}))
    assert ids(decision) == ["a", "c"]
    assert reason(decision) == "nothing is measured yet: ready, while c has to load"


def test_a_hosted_api_is_the_last_resort_unless_it_is_asked_for() -> None:
    cloud = replace(deployment("cloud", Precision.UNKNOWN, engine="hosted"), hosted=True, hardware=Hardware("cloud"))
    decision = route(ASK, fleet({Q4: SLOW, cloud: None}))
    assert ids(decision) == ["q4", "cloud"]
    assert "cloud comes later: a hosted API" in reason(decision)
    assert ids(route(replace(ASK, selector="hosted"), fleet({F16: FAST, cloud: None}))) == ["cloud"]
    assert ids(route(ASK, fleet({F16: FAST, cloud: None}, {"f16": LoadView(Health.DOWN)}))) == ["cloud"]


# --- learning


def test_one_slow_answer_does_not_banish_a_deployment() -> None:
    a, b = deployment("a"), deployment("b")
    view = fleet({a: FAST, b: (700.0, 70.0)})
    slow = Observation("a", a.fingerprint, 300, 48, ttft_s=9.0, total_s=30.0, cached_tokens=0)
    view.predictor.observe(slow, view.now)
    assert ids(route(ASK, view))[0] == "a"
    for _ in range(20):
        view.predictor.observe(slow, view.now)
    assert ids(route(ASK, view))[0] == "b"
    assert ids(route(ASK, replace(view, now=view.now + 7200.0)))[0] == "a"


def test_a_fleet_that_has_changed_is_decided_anew() -> None:
    a, b = deployment("a"), deployment("b")
    view = fleet({a: FAST, b: SLOW})
    assert ids(route(ASK, view)) == ["a", "b"]
    view.predictor.measured("new", samples(5000.0, 500.0))
    changed = replace(b, fingerprint="new")
    assert ids(route(ASK, replace(view, deployments=(a, changed)))) == ["b", "a"]
    assert ids(route(ASK, replace(view, deployments=(a,)))) == ["a"]


def test_many_kinds_of_requests_and_fleets_do_not_pile_up() -> None:
    """Plans are remembered per fleet, up to a bound, and a plan that was dropped is made again."""
    view = fleet({F16: FAST, Q4: SLOW})
    for i in range(300):
        assert route(replace(ASK, selector=f"nobody{i}"), view).chosen is None
    assert ids(route(ASK, view)) == ["f16"]
    for _ in range(10):
        assert ids(route(ASK, fleet({F16: FAST, Q4: SLOW}))) == ["f16"]
    assert len(roster(view.deployments)._plans) <= 256


def test_a_long_name_is_shortened_in_the_middle_so_that_the_numbers_stay() -> None:
    long = deployment("ollama/" + "very-" * 30 + "long:135m-instruct-fp16")
    decision = route(ASK, fleet({deployment("a"): FAST, long: SLOW}))
    assert reason(decision) == "finishes first: 0.77 s predicted, ollama/very-very...5m-instruct-fp16 7.70 s"
