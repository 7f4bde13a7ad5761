"""Experiments and switches through a whole gateway, in front of scripted engines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import valkeys
from engines.scripted import ScriptedEngine
from engines.scripts import chat, status
from engines.signals import Gate
from gateways import Gateway, chat_body, engine_at

from gateway.house import House

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

CHAT = "/v1/chat/completions"
ARMS = [{"name": "first", "deployments": ["a"]}, {"name": "second", "deployments": ["b"]}]


def experiment(**more: Any) -> dict[str, Any]:
    return {"name": "e", "model": "m", "arms": ARMS, "checked": 0.0, **more}


async def begin(client: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    answer = await client.post("/admin/experiments", json=experiment(**more))
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def report(client: httpx.AsyncClient, name: str = "e") -> dict[str, Any]:
    told: dict[str, Any] = (await client.get(f"/admin/experiments/{name}")).json()
    return told


async def ask(client: httpx.AsyncClient, times: int, **more: Any) -> list[httpx.Response]:
    headers = more.pop("headers", {})
    return [await client.post(CHAT, json=chat_body(**more), headers=headers) for _ in range(times)]


async def ask_by_name(client: httpx.AsyncClient, times: int) -> list[httpx.Response]:
    """Ask under ids that are the same each time, and so the arms that they are drawn for."""
    return [(await ask(client, 1, headers={"x-request-id": f"request-{number}"}))[0] for number in range(times)]


def served(answers: list[httpx.Response]) -> Counter[str]:
    return Counter(answer.headers["x-paceline-deployment"] for answer in answers)


@pytest.fixture
def two(scripted: Scripted) -> tuple[ScriptedEngine, ScriptedEngine]:
    return scripted(kind="vllm"), scripted(kind="vllm")


@pytest.fixture
def running(two: tuple[ScriptedEngine, ScriptedEngine], gateway: Start) -> Gateway:
    return gateway(engines=[engine_at(two[0], "a"), engine_at(two[1], "b")])


async def test_requests_for_the_bare_name_are_split_and_others_are_left_alone(running: Gateway) -> None:
    async with running.client() as client:
        await begin(client)
        answers = await ask(client, 60)
        assert 15 <= served(answers)["b"] <= 45
        for answer in answers:
            arm = {"a": "e=first", "b": "e=second"}[answer.headers["x-paceline-deployment"]]
            assert answer.headers["x-paceline-experiment"] == arm
        named = await ask(client, 5, model="m@a")
        assert served(named) == {"a": 5}
        assert all("x-paceline-experiment" not in answer.headers for answer in named)
        told = await report(client)
    first, second = told["arms"]
    assert first["requests"] + second["requests"] == 60
    metrics = {each["metric"]: each for each in told["comparisons"][0]["metrics"]}
    assert sum(metrics["total"]["counts"]) == 60
    assert metrics["errors"]["values"] == [0.0, 0.0]
    assert told["comparisons"][0]["differ"] == []
    assert told["comparisons"][0]["verdict"]["outcome"] == "nothing"


async def test_a_user_stays_in_one_arm(running: Gateway) -> None:
    async with running.client() as client:
        await begin(client, sticky="user")
        arms = [served(await ask(client, 4, user=f"user-{number}")) for number in range(12)]
    assert all(len(arm) == 1 for arm in arms)
    assert {next(iter(arm)) for arm in arms} == {"a", "b"}


async def test_a_headers_value_stays_in_one_arm(running: Gateway) -> None:
    async with running.client() as client:
        await begin(client, sticky="header", header="X-Session")
        arms = [served(await ask(client, 4, headers={"x-session": str(number)})) for number in range(12)]
    assert all(len(arm) == 1 for arm in arms)
    assert {next(iter(arm)) for arm in arms} == {"a", "b"}


async def test_a_request_that_its_arm_cannot_serve_is_served_by_another_and_counts_against_it(
    two: tuple[ScriptedEngine, ScriptedEngine], running: Gateway
) -> None:
    two[1].always(status(500))
    async with running.client() as client:
        await begin(client, guardrails={"errors": 0.99})
        answers = await ask(client, 30)
        assert {answer.status_code for answer in answers} == {200}
        assert served(answers) == {"a": 30}
        metrics = {each["metric"]: each for each in (await report(client))["comparisons"][0]["metrics"]}
    assert metrics["errors"]["values"] == [0.0, 1.0]


async def test_an_arm_that_fails_is_stopped_by_itself_and_says_so(
    two: tuple[ScriptedEngine, ScriptedEngine], running: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    two[1].always(status(500))
    async with running.client() as client:
        await begin(client)
        answers = await ask(client, 60)
        told = await report(client)
        assert {answer.status_code for answer in answers} == {200}
        assert not told["runs"]
        assert "second was stopped" in told["ended"]
        assert any("second was stopped" in record.message for record in caplog.records)
        after = await ask(client, 3)
    assert all("x-paceline-experiment" not in answer.headers for answer in after)


async def test_a_stop_is_counted_and_comes_within_the_number_of_requests_that_was_stated(
    two: tuple[ScriptedEngine, ScriptedEngine], running: Gateway
) -> None:
    two[1].always(status(500))
    counter = 'paceline_experiment_stops_total{guardrail="errors",model="m"}'
    async with running.client() as client:
        stated = (await begin(client))["comparisons"][0]["guardrails"]
        (within,) = [each["within"] for each in stated if each["guardrail"] == "errors" and each["worse"] == 1.0]
        assert f"{counter} 0.0" in (await client.get("/metrics")).text
        await ask_by_name(client, within)
        told = await report(client)
        assert f"{counter} 1.0" in (await client.get("/metrics")).text
    stop = told["arms"][1]["stop"]
    assert (stop["guardrail"], told["arms"][0]["stop"]) == ("errors", None)
    assert 0 < stop["requests"] <= within
    assert stop["text"] in told["ended"]


async def test_traffic_that_is_not_split_as_it_was_meant_is_warned_of(running: Gateway) -> None:
    names = [f"request-{number}" for number in range(130)]
    async with running.client() as client:
        await begin(client)
        answers = await ask_by_name(client, len(names))
        assert not any("split" in warning for warning in (await report(client))["warnings"])
        second = [n for n, answer in zip(names, answers, strict=True) if served([answer])["b"]]
        await client.delete("/admin/experiments/e")
        await begin(client)
        for name in second:  # a client that sends again what the second arm had answered
            await ask(client, 1, headers={"x-request-id": name})
        warnings = (await report(client))["warnings"]
    assert any(warning.startswith("traffic is not split as it was meant") for warning in warnings)


async def test_a_client_that_asks_wrongly_is_no_failure_of_an_arm(
    two: tuple[ScriptedEngine, ScriptedEngine], running: Gateway
) -> None:
    for engine in two:
        engine.always(status(400))
    async with running.client() as client:
        await begin(client)
        answers = await ask(client, 10)
        told = await report(client)
    assert {answer.status_code for answer in answers} == {400}
    metrics = told["comparisons"][0]["metrics"]
    assert {tuple(metric["counts"]) for metric in metrics} == {(0, 0)}, metrics


async def test_a_ramp_goes_step_by_step_and_to_any_share(running: Gateway) -> None:
    async with running.client() as client:
        assert (await begin(client, ramp=[0.05, 0.25, 0.5]))["share"] == 0.05
        steps = [(await client.patch("/admin/experiments/e", json={})).json() for _ in range(2)]
        assert [step["share"] for step in steps] == [0.25, 0.5]
        refused = await client.patch("/admin/experiments/e", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "end_of_ramp")
        back = (await client.patch("/admin/experiments/e", json={"share": 0.05})).json()
        assert back["arms"][1]["weight"] == 0.05
        assert (await client.delete("/admin/experiments/e")).json()["ended"] == "stopped by command"
        assert (await client.delete("/admin/experiments/e")).status_code == 409


async def test_a_ramp_that_goes_on_by_itself_takes_the_next_step_after_so_many_requests(running: Gateway) -> None:
    async with running.client() as client:
        await begin(client, ramp=[0.5, 1.0], advance_after=5)
        await ask(client, 40)
        assert (await report(client))["share"] == 1.0


async def test_what_cannot_be_begun_says_why(running: Gateway) -> None:
    wrong = {
        "no_such_deployment": experiment(arms=[ARMS[0], {"name": "x", "deployments": ["nobody"]}]),
        "arms_overlap": experiment(arms=[ARMS[0], {"name": "x", "deployments": ["a", "b"]}]),
        "model_not_found": experiment(model="unknown"),
    }
    async with running.client() as client:
        for code, body in wrong.items():
            assert (await client.post("/admin/experiments", json=body)).json()["error"]["code"] == code
        await begin(client)
        other = await client.post("/admin/experiments", json=experiment(name="other"))
        assert (other.status_code, other.json()["error"]["code"]) == (409, "model_taken")


async def test_the_cache_gives_no_arm_what_the_other_wrote_and_what_it_gives_is_no_outcome(
    scripted: Scripted, gateway: Start
) -> None:
    engines = scripted(kind="vllm", model="one"), scripted(kind="vllm", model="two")
    for engine, text in zip(engines, ("from a", "from b"), strict=True):
        engine.always(chat([text]))
    running = gateway(engines=[engine_at(engines[0], "a"), engine_at(engines[1], "b")], cache={"mode": "all"})
    async with running.client() as client:
        await begin(client)
        answers = await ask(client, 40)
        told = await report(client)
    for answer in answers:
        arm = answer.headers["x-paceline-experiment"]
        said = answer.json()["choices"][0]["message"]["content"]
        assert said == {"e=first": "from a", "e=second": "from b"}[arm]
    assert len(engines[0].requests) == len(engines[1].requests) == 1
    metrics = {each["metric"]: each for each in told["comparisons"][0]["metrics"]}
    assert metrics["errors"]["counts"] == [1, 1]
    assert sum(arm["requests"] for arm in told["arms"]) == 40


async def test_callers_scores_are_counted_once_and_only_theirs(running: Gateway) -> None:
    async with running.client() as client:
        await begin(client)
        answers = await ask(client, 20)
        for answer in answers:
            score = {"request_id": answer.headers["x-request-id"], "score": 1.0}
            assert (await client.post("/v1/feedback", json=score)).status_code == 200
            assert (await client.post("/v1/feedback", json=score)).status_code == 404
        metrics = {each["metric"]: each for each in (await report(client))["comparisons"][0]["metrics"]}
    assert sum(metrics["score"]["counts"]) == 20
    assert metrics["score"]["values"] == [1.0, 1.0]


async def test_the_form_of_sampled_answers_is_looked_at(
    two: tuple[ScriptedEngine, ScriptedEngine], running: Gateway
) -> None:
    two[0].always(chat(['{"x"', ": 1}"]))
    two[1].always(chat(["not ", "JSON"]))
    async with running.client() as client:
        await begin(client, checked=1.0, guardrails={"faults": 0.9})
        for each in range(20):
            stream = bool(each % 2)
            await client.post(CHAT, json=chat_body(stream=stream, response_format={"type": "json_object"}))
        async with asyncio.timeout(20):
            while True:
                metrics = {each["metric"]: each for each in (await report(client))["comparisons"][0]["metrics"]}
                if "faults" in metrics and sum(metrics["faults"]["counts"]) == 20:
                    break
    assert metrics["faults"]["values"] == [0.0, 1.0]


async def test_a_shadow_gets_copies_that_nobody_sees(
    two: tuple[ScriptedEngine, ScriptedEngine], running: Gateway
) -> None:
    two[1].always(chat(["shadow"]))
    async with running.client() as client:
        await begin(client, shadow=True, ramp=[1.0])
        for number in range(3):
            (answer,) = await ask(client, 1)
            assert answer.headers["x-paceline-deployment"] == "a"
            assert answer.json()["choices"][0]["message"]["content"] == "Hello!"
            await (await two[1].received(number)).answered.wait()
            async with asyncio.timeout(20):
                while (await report(client))["arms"][1]["requests"] != number + 1:
                    pass


async def test_a_shadow_makes_way_for_a_request(two: tuple[ScriptedEngine, ScriptedEngine], running: Gateway) -> None:
    two[1].always(chat(["shadow"], gate=Gate()))
    async with running.client() as client:
        await begin(client, shadow=True, ramp=[1.0])
        await ask(client, 1)
        copy = await two[1].received(0)
        (answer,) = await ask(client, 1)
        assert answer.status_code == 200
        await copy.left.wait()


async def test_a_model_is_switched_to_a_deployment_and_back(running: Gateway) -> None:
    async with running.client() as client:
        for to in ("a", "b"):
            switched = await client.post("/admin/switch", json={"model": "m", "to": to})
            assert switched.status_code == 200, switched.text
            assert served(await ask(client, 10)) == {to: 10}
        back = await client.post("/admin/switch/back", json={"model": "m"})
        assert back.json()["ended"] == "switched back"
        (answer,) = await ask(client, 1)
        assert "x-paceline-experiment" not in answer.headers


async def test_no_request_is_lost_in_a_switch_also_when_the_new_one_dies(
    two: tuple[ScriptedEngine, ScriptedEngine], running: Gateway
) -> None:
    gate = Gate()
    two[0].always(chat(gate=gate))
    async with running.client() as client:
        await client.post("/admin/switch", json={"model": "m", "to": "a"})
        asking = asyncio.create_task(client.post(CHAT, json=chat_body(stream=True)))
        await two[0].received(0)
        await client.post("/admin/switch", json={"model": "m", "to": "b"})
        assert served(await ask(client, 3)) == {"b": 3}
        gate.open()
        assert (await asking).text.endswith("data: [DONE]\n\n")
        two[1].stop()
        two[0].always(chat())
        after = await ask(client, 3)
    assert {answer.status_code for answer in after} == {200}
    assert served(after) == {"a": 3}


async def test_arms_that_differ_in_more_than_one_variable_get_no_verdict(scripted: Scripted, gateway: Start) -> None:
    one, other = scripted(kind="llamacpp"), scripted(kind="vllm")
    running = gateway(engines=[engine_at(one, "a", precision="int4"), engine_at(other, "b", precision="bf16")])
    async with running.client() as client:
        told = await begin(client)
    compared = told["comparisons"][0]
    assert compared["verdict"]["outcome"] == "refused"
    assert any(each.startswith("engine:") for each in compared["differ"])
    assert any(each.startswith("precision:") for each in compared["differ"])


async def test_an_experiment_survives_a_restart(
    two: tuple[ScriptedEngine, ScriptedEngine], gateway: Start, tmp_path: Path
) -> None:
    engines = [engine_at(two[0], "a"), engine_at(two[1], "b")]
    running = gateway(engines=engines)
    async with running.client() as client:
        await begin(client, sticky="user", ramp=[0.5, 0.75])
        await client.patch("/admin/experiments/e", json={})
        before = await ask(client, 12, user="alice")
        counted = (await report(client))["arms"]
    running.stop()
    again = Gateway(running.house.settings.data_dir, engines=engines)
    try:
        async with again.client() as client:
            told = await report(client)
            assert told["share"] == 0.75
            assert told["arms"] == counted
            assert served(await ask(client, 3, user="alice")).keys() == served(before).keys()
    finally:
        again.stop()


async def test_a_declared_experiment_begins_and_ends_with_the_configuration(
    two: tuple[ScriptedEngine, ScriptedEngine], tmp_path: Path
) -> None:
    engines = [engine_at(two[0], "a"), engine_at(two[1], "b")]
    ended = ["", "no longer in the configuration"]
    for declared, end in zip(([experiment()], []), ended, strict=True):
        running = Gateway(tmp_path, engines=engines, experiments=declared)
        try:
            async with running.client() as client:
                assert (await report(client))["ended"] == end
        finally:
            running.stop()


async def test_gateways_that_share_a_redis_agree(
    two: tuple[ScriptedEngine, ScriptedEngine], gateway: Start, valkey: Callable[..., valkeys.Valkey]
) -> None:
    cache = {"mode": "off", "url": valkey().url}
    models = {"m": {"cache": {"mode": "deterministic"}}}
    engines = [engine_at(two[0], "a"), engine_at(two[1], "b")]
    one, other = (gateway(engines=engines, cache=cache, models=models) for _ in range(2))
    async with one.client() as first, other.client() as second:
        await begin(first, ramp=[0.05, 0.5])
        await _until(second, lambda told: told.get("share") == 0.05)
        await second.patch("/admin/experiments/e", json={})
        await _until(first, lambda told: told.get("share") == 0.5)
        await first.delete("/admin/experiments/e")
        await _until(second, lambda told: told.get("ended") == "stopped by command")


async def _until(client: httpx.AsyncClient, holds: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds(await report(client)):
            pass


def test_a_house_without_experiments_asks_for_nothing(tmp_path: Path) -> None:
    from gateway.settings import Settings

    assert House(Settings(data_dir=tmp_path)).experiments.all == []
