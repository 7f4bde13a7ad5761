"""The laws of routing, on fleets, loads and requests that nobody thought of."""

from __future__ import annotations

from dataclasses import replace

from fleets import NOW, deployment, samples
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.deadline import misses_deadline
from policies.predict import Predictor
from policies.route import route
from policies.selector import selects
from policies.types import (
    NO_COMPANY,
    Capability,
    Decision,
    Deployment,
    Health,
    LoadView,
    Objective,
    Operation,
    Precision,
    Quality,
    RequestFacts,
    Usual,
)
from policies.view import FleetView

law = settings(deadline=None)
_SELECTORS = ("", "", "", "int8+", "int4", "fp16", "bf16+", "vllm", "llama.cpp", "d1", "Q4_K_M", "nonsense")
_BASIC = frozenset({Capability.CHAT, Capability.COMPLETION, Capability.EMBEDDINGS})

capabilities = st.sets(st.sampled_from([Capability.TOOLS, Capability.VISION, Capability.LOGPROBS])).map(
    lambda extra: _BASIC | extra
)


@st.composite
def loads(draw: st.DrawFn, *, always_up: bool = False) -> LoadView:
    prefilling = draw(st.integers(0, 4))
    decoding = draw(st.integers(0, 6))
    return LoadView(
        health=Health.UP if always_up else draw(st.sampled_from([Health.UP, Health.UP, Health.LOADING, Health.DOWN])),
        inflight=prefilling + decoding,
        prefilling=prefilling,
        owed_prefill_tokens=draw(st.integers(0, 3000)) if prefilling else 0,
        owed_decode_tokens=draw(st.integers(0, 2000)) if prefilling + decoding else 0,
        context_tokens=draw(st.integers(0, 9000)) if prefilling + decoding else 0,
        foreign_running=draw(st.integers(0, 3)),
        foreign_waiting=draw(st.integers(0, 2)),
        age_s=draw(st.sampled_from([0.0, 3.0, 20.0])),
        resident=draw(st.booleans()),
        load_s=draw(st.sampled_from([0.0, 0.5, 12.0])),
        breaker_open=not always_up and draw(st.booleans()),
        retry_after_s=draw(st.sampled_from([0.0, 0.0, 4.0])),
        cached_tokens=draw(st.sampled_from([0, 0, 64, 256])),
    )


@st.composite
def facts(draw: st.DrawFn) -> RequestFacts:
    prompt = draw(st.integers(1, 6000))
    return RequestFacts(
        model="smollm2",
        selector=draw(st.sampled_from(_SELECTORS)),
        operation=draw(st.sampled_from([Operation.CHAT, Operation.COMPLETION, Operation.EMBEDDINGS])),
        prompt_tokens=prompt,
        prompt_tokens_least=draw(st.integers(1, prompt)),
        counted=draw(st.booleans()),
        expected_output=draw(st.integers(1, 500)),
        max_output=draw(st.one_of(st.none(), st.integers(1, 4000))),
        needs=frozenset(draw(st.sets(st.sampled_from([Capability.TOOLS, Capability.VISION]), max_size=1))),
        objective=draw(st.sampled_from(list(Objective))),
        pinned=draw(st.sampled_from(["", "", "", "d1", "nobody"])),
        further=draw(st.sampled_from([0.0, 0.0, 3.0])),
        deadline_s=draw(st.sampled_from([None, None, None, 0.5, 20.0])),
    )


@st.composite
def fleets(draw: st.DrawFn, *, always_up: bool = False, own_hosts: bool = False, plain: bool = False) -> FleetView:
    """Fleets of one to five; ``plain`` ones are measured, in 16 bits, and able to do everything."""
    predictor = Predictor()
    members = []
    for i in range(draw(st.integers(1, 5))):
        member = deployment(
            f"d{i}",
            Precision.BF16 if plain else draw(st.sampled_from(list(Precision))),
            host=f"host{i}" if own_hosts else draw(st.sampled_from(["left", "right"])),
            engine=draw(st.sampled_from(["llamacpp", "vllm"])),
            scheme=draw(st.sampled_from(["", "Q4_K_M"])),
            context=8192 if plain else draw(st.sampled_from([None, 512, 2048, 8192])),
            slots=draw(st.sampled_from([None, 1, 2, 4])),
            capabilities=frozenset(Capability) if plain else draw(capabilities),
            quality=draw(st.sampled_from(list(Quality))),
            stable=draw(st.booleans()),
            hosted=not plain and draw(st.integers(0, 5)) == 0,
        )
        members.append(member)
        if plain or draw(st.booleans()):
            speed = draw(st.floats(20, 2000)), draw(st.floats(2, 200))
            predictor.measured(member.fingerprint, samples(*speed), (), member.hardware)
    known = {m.id: draw(loads(always_up=always_up)) for m in members if draw(st.booleans())}
    last_used = draw(st.sampled_from([{}, {"smollm2": "d0"}, {"smollm2": "d2"}]))
    company = {m.id: Usual(draw(st.floats(0, 4)), draw(st.floats(0, 2))) for m in members if draw(st.booleans())}
    return FleetView(tuple(members), known, predictor, last_used, NOW, usual=company)


@st.composite
def more(draw: st.DrawFn, load: LoadView) -> LoadView:
    """The same load with something added to it."""
    prefilling, decoding = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    return replace(
        load,
        inflight=load.inflight + prefilling + decoding,
        prefilling=load.prefilling + prefilling,
        owed_prefill_tokens=load.owed_prefill_tokens + draw(st.integers(0, 2000)) * bool(prefilling),
        owed_decode_tokens=load.owed_decode_tokens + draw(st.integers(0, 2000)) * bool(prefilling + decoding),
        context_tokens=load.context_tokens + draw(st.integers(0, 5000)) * bool(prefilling + decoding),
        foreign_running=load.foreign_running + draw(st.integers(0, 2)),
        foreign_waiting=load.foreign_waiting + draw(st.integers(0, 2)),
    )


def _load(fleet: FleetView, which: Deployment) -> LoadView:
    return fleet.loads.get(which.id, LoadView())


def _chosen(decision: Decision) -> str:
    assert decision.chosen is not None
    return decision.chosen.deployment.id


@law
@given(facts(), fleets())
def test_never_a_deployment_that_lacks_capability_context_or_the_asked_precision(
    f: RequestFacts, fleet: FleetView
) -> None:
    for candidate in route(f, fleet).candidates:
        able = candidate.deployment
        assert f.needs | {f.operation.capability} <= able.capabilities
        assert selects(f.selector, able)
        assert not f.pinned or able.id == f.pinned
        certain = f.prompt_tokens if f.counted else f.prompt_tokens_least
        assert able.context is None or certain <= able.context
        if f.selector.endswith("+") and f.selector != "":
            assert able.precision.bits >= Precision(f.selector[:-1]).bits
        assert _load(fleet, able).health is not Health.DOWN
        assert not _load(fleet, able).breaker_open


@law
@given(facts(), fleets())
def test_every_deployment_of_the_model_is_a_candidate_or_has_a_reason(f: RequestFacts, fleet: FleetView) -> None:
    decision = route(f, fleet)
    named = [c.deployment.id for c in decision.candidates] + [r.deployment.id for r in decision.rejected]
    assert sorted(named) == sorted(d.id for d in fleet.deployments)
    assert all(r.code and r.reason for r in decision.rejected)


@law
@given(facts(), fleets())
def test_who_asked_for_no_precision_gets_no_worse_one_while_a_better_one_is_up(
    f: RequestFacts, fleet: FleetView
) -> None:
    decision = route(replace(f, selector="", pinned=""), fleet)
    best = decision.chosen
    if best is None or best.deployment.hosted:
        return
    trusted = (Quality.PASSED, Quality.BASELINE)
    if best.deployment.precision.bits < 16 and best.deployment.quality not in trusted:
        for other in decision.candidates:
            if _load(fleet, other.deployment).health is Health.UP and not other.deployment.hosted:
                assert other.deployment.precision.bits <= max(8, best.deployment.precision.bits)
                assert other.deployment.precision.bits < 16


@law
@given(facts(), fleets(plain=True, always_up=True))
def test_faster_in_every_respect_is_never_passed_over(f: RequestFacts, fleet: FleetView) -> None:
    decision = route(replace(f, selector="", pinned="", deadline_s=None, further=0.0), fleet)
    assert decision.chosen is not None
    ours = decision.chosen.estimate
    assert ours is not None
    for other in decision.candidates[1:]:
        same_tier = bool(_load(fleet, other.deployment).retry_after_s) <= bool(
            _load(fleet, decision.chosen.deployment).retry_after_s
        )
        theirs = other.estimate
        assert theirs is not None
        assert not (
            same_tier
            and other.deployment.stable >= decision.chosen.deployment.stable
            and theirs.cost_to_next_s < ours.cost_to_next_s
            and theirs.ttft_s < ours.ttft_s
            and theirs.total_s < ours.total_s
            and theirs.cost_to_others_s < ours.cost_to_others_s
        )


@law
@given(st.data(), facts(), fleets(always_up=True))
def test_adding_load_never_makes_a_prediction_better(data: st.DataObject, f: RequestFacts, fleet: FleetView) -> None:
    which = data.draw(st.sampled_from(fleet.deployments))
    load = _load(fleet, which)
    usual = fleet.usual.get(which.id, NO_COMPANY)
    before = fleet.predictor.estimate(f, which, load, NOW, usual=usual)
    after = fleet.predictor.estimate(f, which, data.draw(more(load)), NOW, usual=usual)
    if before is None or after is None:
        assert before is after
        return
    assert after.ttft_s >= before.ttft_s - 1e-9
    assert after.total_s >= before.total_s - 1e-9
    assert after.cost_to_others_s >= before.cost_to_others_s - 1e-9
    assert after.cost_to_next_s >= before.cost_to_next_s - 1e-9
    assert after.spread >= before.spread
    assert min(after.queue_s, after.load_s, after.prefill_s, after.decode_s) >= 0.0


@law
@given(st.data(), facts(), fleets(always_up=True, own_hosts=True))
def test_adding_load_never_makes_a_deployment_more_attractive(
    data: st.DataObject, f: RequestFacts, fleet: FleetView
) -> None:
    before = route(f, fleet)
    if before.chosen is None:
        return
    which = data.draw(st.sampled_from(fleet.deployments))
    heavier = {**fleet.loads, which.id: data.draw(more(_load(fleet, which)))}
    after = route(f, replace(fleet, loads=heavier))
    assert _chosen(before) == which.id or _chosen(after) != which.id


@law
@given(st.data(), facts(), fleets(always_up=True, plain=True))
def test_load_on_a_hardware_never_makes_the_deployments_there_more_attractive(
    data: st.DataObject, f: RequestFacts, fleet: FleetView
) -> None:
    f, fleet = replace(f, selector="", pinned="", deadline_s=None), replace(fleet, last_used={})
    bare = {i: replace(load, cached_tokens=0) for i, load in fleet.loads.items()}
    fleet = replace(fleet, loads=bare)
    before = route(f, fleet)
    which = data.draw(st.sampled_from(fleet.deployments))
    after = route(f, replace(fleet, loads={**bare, which.id: data.draw(more(_load(fleet, which)))}))
    now = {c.deployment.id: c.estimate for c in after.candidates}
    for candidate in before.candidates:
        if candidate.deployment.hardware.shares(which.hardware):
            was, is_ = candidate.estimate, now[candidate.deployment.id]
            assert was is not None
            assert is_ is not None
            assert is_.ttft_s >= was.ttft_s - 1e-6
            assert is_.total_s >= was.total_s - 1e-6
    assert before.chosen is not None
    assert after.chosen is not None
    if not before.chosen.deployment.hardware.shares(which.hardware):
        assert not after.chosen.deployment.hardware.shares(which.hardware)


@law
@given(facts(), fleets())
def test_the_reason_always_names_the_deciding_difference(f: RequestFacts, fleet: FleetView) -> None:
    decision = route(f, fleet)
    if decision.chosen is None:
        assert decision.rule == "none"
        assert all(r.deployment.id in str(decision) for r in decision.rejected)
        return
    reason = decision.chosen.reason
    if f.pinned:
        assert decision.rule == "pinned"
        assert "pinned" in reason
    elif len(decision.candidates) > 1:
        assert decision.candidates[1].deployment.id in reason
    elif decision.rule == "best-precision":
        assert "the best" in reason or "unknown precision is all" in reason
    else:
        assert "only" in reason


@law
@given(facts(), fleets(), st.text(max_size=300))
def test_every_reason_fits_into_a_response_header(f: RequestFacts, fleet: FleetView, noise: str) -> None:
    members = tuple(replace(d, id=d.id + noise) for d in fleet.deployments)
    noisy = {i + noise: replace(load, note=noise) for i, load in fleet.loads.items()}
    for candidate in route(f, replace(fleet, deployments=members, loads=noisy)).candidates:
        assert candidate.reason
        assert candidate.reason.isascii()
        assert candidate.reason.isprintable()
        assert len(candidate.reason) <= 200


@law
@given(facts(), fleets(), st.randoms(use_true_random=False))
def test_the_order_in_which_deployments_are_listed_decides_nothing(
    f: RequestFacts, fleet: FleetView, random: object
) -> None:
    shuffled = list(fleet.deployments)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = route(f, replace(fleet, deployments=tuple(shuffled)))
    decision = route(f, fleet)
    assert [c.deployment.id for c in again.candidates] == [c.deployment.id for c in decision.candidates]
    assert again.rule == decision.rule


@law
@given(facts(), fleets(always_up=True), st.floats(0.0, 0.6), st.floats(0.0, 0.6))
def test_who_asked_for_no_precision_gets_a_quantised_one_only_when_it_is_faster_by_its_margin(
    f: RequestFacts, fleet: FleetView, eight: float, four: float
) -> None:
    f = replace(f, selector="", pinned="", further=0.0, objective=Objective.TTFT, deadline_s=None)
    plain = {i: replace(load, cached_tokens=0, retry_after_s=0.0) for i, load in fleet.loads.items()}
    members = tuple(replace(d, context=None, capabilities=frozenset(Capability)) for d in fleet.deployments)
    decision = route(f, replace(fleet, deployments=members, loads=plain, last_used={}, margins=(eight, four)))
    best = decision.chosen
    if best is None or best.estimate is None or best.deployment.hosted or decision.rule == "best-precision":
        return
    margin = 0.0 if best.deployment.precision.bits >= 16 else eight if best.deployment.precision.bits >= 8 else four
    for other in decision.candidates[1:]:
        if other.estimate is not None and not other.deployment.hosted and other.deployment.precision.bits >= 16:
            assert best.estimate.ttft_s <= other.estimate.ttft_s * (1.0 - margin) * 1.06 + 1e-6


@law
@given(facts(), fleets(always_up=True, plain=True), st.floats(0.1, 60.0))
def test_who_is_predicted_to_meet_the_deadline_comes_before_who_is_not(
    f: RequestFacts, fleet: FleetView, deadline_s: float
) -> None:
    asked = replace(f, selector="", pinned="", deadline_s=deadline_s)
    bare = {i: replace(load, retry_after_s=0.0) for i, load in fleet.loads.items()}
    members = tuple(replace(d, context=None) for d in fleet.deployments)
    decision = route(asked, replace(fleet, deployments=members, loads=bare))
    late = [c.estimate is not None and c.estimate.total_s > deadline_s for c in decision.candidates]
    assert late == sorted(late)
    missed = misses_deadline(decision, asked)
    assert (missed is not None) == all(late)
    if missed is not None:
        assert missed.total_s == min(c.estimate.total_s for c in decision.candidates if c.estimate is not None)


@law
@given(st.data(), facts(), fleets(always_up=True))
def test_more_usual_company_never_makes_a_prediction_better(
    data: st.DataObject, f: RequestFacts, fleet: FleetView
) -> None:
    which = data.draw(st.sampled_from(fleet.deployments))
    # Where somebody is there already, they count as more of the usual company, and what that does may be little.
    load = replace(_load(fleet, which), inflight=0, prefilling=0, foreign_running=0, foreign_waiting=0)
    few = Usual(data.draw(st.floats(0.1, 3)), data.draw(st.floats(0.1, 3)))
    many = Usual(few.decoding + data.draw(st.floats(0, 3)), few.prefilling + data.draw(st.floats(0, 3)))
    none = fleet.predictor.estimate(f, which, load, NOW)
    some = fleet.predictor.estimate(f, which, load, NOW, usual=few)
    more_ = fleet.predictor.estimate(f, which, load, NOW, usual=many)
    if none is None or some is None or more_ is None:
        return
    assert none.ttft_s == some.ttft_s == more_.ttft_s
    assert none.total_s <= some.total_s + 1e-9 <= more_.total_s + 2e-9
    assert none.cost_to_next_s <= some.cost_to_next_s + 1e-9 <= more_.cost_to_next_s + 2e-9


@law
@given(facts(), fleets(always_up=True, plain=True))
def test_what_follows_matters_only_where_a_beginning_is_held(f: RequestFacts, fleet: FleetView) -> None:
    bare = replace(fleet, loads={i: replace(load, cached_tokens=0) for i, load in fleet.loads.items()})
    once, often = route(replace(f, further=0.0), bare), route(replace(f, further=8.0), bare)
    assert [c.deployment.id for c in once.candidates] == [c.deployment.id for c in often.candidates]
