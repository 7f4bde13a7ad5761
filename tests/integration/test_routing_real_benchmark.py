"""The benchmark on real engines, here in front of scripted ones: what it asks, and whom."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import chat, status
from gateways import MODEL, Gateway, engine_at

from benchmarks.routing_real.client import Client
from benchmarks.routing_real.others import Others
from benchmarks.routing_real.phases import AT_ONCE, IN_THE_BACKGROUND, Phase, at_once, beside_others, one_by_one
from benchmarks.routing_real.shapes import shapes

NAMES = ("a", "b")


async def answer(exchange: Exchange) -> None:
    await chat(["a ", "light."], prompt_tokens=9)(exchange)


@pytest.fixture
def engines(scripted: Callable[..., ScriptedEngine]) -> dict[str, ScriptedEngine]:
    made = {name: scripted(kind="llamacpp") for name in NAMES}
    for engine in made.values():
        engine.always(answer)
    return made


@pytest.fixture
async def client(engines: dict[str, ScriptedEngine], gateway: Callable[..., Gateway]) -> AsyncIterator[Client]:
    running = gateway(engines=[engine_at(engine, name) for name, engine in engines.items()])
    client = Client(running.url, MODEL, Others([]))
    yield client
    await client.aclose()


def tell(what: str) -> None:
    """Nobody looks."""


def asked_of(*engines: ScriptedEngine) -> list[Any]:
    return [request.json for engine in engines for request in engine.requests]


async def test_one_in_so_many_is_asked_of_every_candidate_with_a_prompt_that_no_cache_holds(
    engines: dict[str, ScriptedEngine], client: Client
) -> None:
    phase = Phase("alone")
    asked = shapes(6, follow_ups=True)
    await one_by_one(phase, client, asked, NAMES, 3, 2, tell)
    assert phase.errors == []
    assert len(phase.sent) == 6
    assert [set(case.costs) for case in phase.cases] == [{"a", "b"}, {"a", "b"}]
    assert all([set(each) for each in case.rounds] == [{"a", "b"}, {"a", "b"}] for case in phase.cases)
    assert all({name: len(sents) for name, sents in case.again.items()} == {"a": 2, "b": 2} for case in phase.cases)
    assert all(case.rounds[0][case.sent.deployment] == case.sent.total_s for case in phase.cases)
    prompts = [body["messages"][0]["content"] for body in asked_of(*engines.values())]
    assert len(prompts) == 12
    assert len({prompt[:3] for prompt in prompts}) == 11, "only the follow-up begins like another"


async def test_a_follow_up_goes_on_with_the_conversation_before_it(
    engines: dict[str, ScriptedEngine], client: Client
) -> None:
    asked = shapes(6, follow_ups=True)
    await one_by_one(Phase("alone"), client, asked, NAMES, 100, 1, tell)
    (follow_up,) = [body for body in asked_of(*engines.values()) if len(body["messages"]) == 3]
    before, said, more = follow_up["messages"]
    assert (before["content"], said["content"]) == (asked[4].text(), "a light.")
    assert more["content"] == asked[5].text()


async def test_a_request_that_fails_is_told_and_no_case_is_made_of_it(
    engines: dict[str, ScriptedEngine], client: Client
) -> None:
    for engine in engines.values():
        engine.always(status(400))
    phase = Phase("alone")
    await one_by_one(phase, client, shapes(2), NAMES, 1, 1, tell)
    assert phase.sent == phase.cases == []
    assert len(phase.errors) == 2


async def test_a_choice_that_fails_when_it_is_asked_again_is_no_case_and_loses_nothing_else(
    engines: dict[str, ScriptedEngine], client: Client
) -> None:
    phase = Phase("alone")

    def fail_from_the_second_on(what: str) -> None:
        if what.startswith("the same"):
            for engine in engines.values():
                engine.always(status(400))

    await one_by_one(phase, client, shapes(1), NAMES, 1, 2, fail_from_the_second_on)
    assert len(phase.sent) == 1
    assert phase.cases == []
    assert len(phase.errors) == 3


async def test_so_many_are_sent_at_once_and_all_are_answered(
    engines: dict[str, ScriptedEngine], client: Client
) -> None:
    phase = Phase("at once")
    await at_once(phase, client, shapes(3 * AT_ONCE), tell)
    assert len(phase.sent) == 3 * AT_ONCE
    assert {sent.shape.number for sent in phase.sent} == set(range(3 * AT_ONCE))


async def test_beside_others_the_same_others_run_where_they_ran_before(
    engines: dict[str, ScriptedEngine], client: Client
) -> None:
    phase = Phase("beside")
    await beside_others(phase, client, 1, 0, NAMES, tell)
    assert phase.errors == []
    (case,) = phase.cases
    assert set(case.costs) == {"a", "b"}
    assert [sent.shape.number for sent in phase.sent] == [0], "the others are the scene, not the subject"
    bodies = {name: asked_of(engine) for name, engine in engines.items()}
    background = {name: sum(body["max_tokens"] == 96 for body in found) for name, found in bodies.items()}
    assert sum(background.values()) == 2 * IN_THE_BACKGROUND
    assert all(count % 2 == 0 for count in background.values())
    assert json.dumps(bodies).count("1/0: ") + json.dumps(bodies).count("2/0: ") == 1
