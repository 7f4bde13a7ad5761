"""The simulator keeps its own laws, and the policy that runs in it keeps its promises."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from benchmarks.routing.fleets import fleet
from benchmarks.routing.forward import aside, run_beside, run_down, run_together
from benchmarks.routing.oracle import Oracle
from benchmarks.routing.ours import Paceline
from benchmarks.routing.policy import LeastBusy, Policy, RoundRobin
from benchmarks.routing.request import Request
from benchmarks.routing.scenario import Scenario, build
from benchmarks.routing.scenes import NAMES, scene
from benchmarks.routing.world import World, simulate

FP16, Q8, VLLM, OLLAMA, MLX, Q4 = range(6)


def ask(prompt: int = 300, output: int = 51, number: int = 0) -> Request:
    return Request(number, 0.0, prompt, output, prompt, "me", (1.0,) * 6)


def test_alone_a_request_takes_what_the_law_says() -> None:
    engines, places = build(fleet())
    law = engines[FP16].law
    seen = run_beside(places[0], ask(), engines[FP16])
    assert seen.ttft_s == pytest.approx(law.read_s(300, 0))
    assert seen.total_s == pytest.approx(law.read_s(300, 0) + law.write_s(300, 51))
    assert law.read_s(308, 0) == pytest.approx(0.02 + 308 / 509)


def test_with_one_slot_the_second_waits_for_the_first() -> None:
    engines, places = build(fleet())
    first, second = run_together(places[2], [ask(number=0), ask(number=1)], engines[MLX])
    assert second.ttft_s == pytest.approx(first.total_s + first.ttft_s)


def test_a_prompt_that_is_read_stalls_the_answers_in_the_same_engine() -> None:
    engines, places = build(fleet())
    alone = run_beside(places[0], ask(), engines[FP16])
    engines, places = build(fleet())
    stalled = run_beside(places[0], ask(), engines[FP16], ask(900, 1, number=1), engines[FP16])
    assert stalled.total_s - stalled.ttft_s > 3 * (alone.total_s - alone.ttft_s)


def test_two_engines_on_one_gpu_take_turns() -> None:
    engines, places = build(fleet())
    alone = run_beside(places[1], ask(), engines[VLLM])
    engines, places = build(fleet())
    beside = run_beside(places[1], ask(), engines[VLLM], ask(100, 5000, number=1), engines[OLLAMA])
    assert beside.total_s == pytest.approx(2.0 * alone.total_s, rel=0.01)


def test_looking_ahead_changes_nothing() -> None:
    engines, places = build(fleet())
    place = places[0]
    place.take(engines[FP16], ask(), 0.0)
    place.admit(0.0)
    place.settle()
    ends = run_down(aside(place), 0.0)
    assert list(ends) == [0]
    assert engines[FP16].busy == 1
    assert engines[FP16].reading[0].left_s == engines[FP16].reading[0].read_s


def test_a_model_that_nobody_used_for_a_while_is_loaded_first() -> None:
    members = tuple(replace(member, keep_loaded_s=5.0, load_s=2.0) for member in fleet())
    requests = (ask(number=0), replace_at(ask(number=1), 60.0))
    answered = simulate(Scenario("", members, requests, ((1.0,),) * 6), lambda world: Always(OLLAMA))
    assert answered[1].was_cold
    assert answered[1].total_s == pytest.approx(answered[0].total_s + 2.0, rel=0.01)


def replace_at(request: Request, at: float) -> Request:
    request.at = at
    return request


class Always(Policy):
    """One engine, whatever happens."""

    def __init__(self, index: int) -> None:
        self._index = index

    def choose(self, request: Request, able: object, now: float) -> object:  # type: ignore[override]
        return next((engine for engine in able if engine.index == self._index), able[0])  # type: ignore


def test_what_an_engine_was_doing_when_it_died_is_done_by_another() -> None:
    def served(name: str) -> int:
        return len(simulate(scene(name, 1, 80), lambda world: RoundRobin()))

    assert served("mixed, an outage") >= 80


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_gets_the_same_requests(name: str) -> None:
    one, other = scene(name, 7, 40), scene(name, 7, 40)
    assert [(r.at, r.prompt_tokens, r.output_tokens, r.luck) for r in one.requests] == [
        (r.at, r.prompt_tokens, r.output_tokens, r.luck) for r in other.requests
    ]
    assert one.speeds == other.speeds


def test_the_same_seed_gives_the_same_result() -> None:
    runs = [simulate(scene("mixed", 3, 60), lambda world: Paceline(world, 3)) for _ in range(2)]
    assert [request.done_at for request in runs[0]] == [request.done_at for request in runs[1]]


def test_on_mixed_work_it_is_near_the_oracle_and_far_ahead_of_counting_requests() -> None:
    def total(make: object) -> float:
        return mean(mean(r.total_s for r in simulate(scene("mixed", seed, 250), make)) for seed in (11, 12))  # type: ignore

    ours = total(lambda world: Paceline(world, 11))
    assert ours < 1.1 * total(Oracle)
    assert ours < 0.8 * total(lambda world: LeastBusy())


def test_four_of_five_outcomes_in_the_simulator_lie_in_the_intervals_that_were_given() -> None:
    policies: list[Paceline] = []

    def make(world: World) -> Paceline:
        policies.append(Paceline(world, 5))
        return policies[-1]

    simulate(scene("mixed", 5, 700), make)
    (policy,) = policies
    coverages = [policy.predictor.coverage(d.fingerprint) for d in policy.deployments]
    held, seen = sum(c.held for c in coverages), sum(c.seen for c in coverages)
    assert seen > 300
    assert 0.73 <= held / seen <= 0.9
