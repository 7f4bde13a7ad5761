"""How well predictions held, their intervals, and whom a precision serves: what `models` and `explain` are told."""

from __future__ import annotations

from collections.abc import Callable

from engines.scripted import ScriptedEngine
from engines.scripts import chat, whole
from fleets import samples
from gateways import Gateway, chat_body, engine_at

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]


def measured(gateway: Gateway) -> Gateway:
    """Give every deployment a measurement."""
    for deployment in gateway.house.fleet.deployments:
        gateway.call(gateway.house.fleet.learned.measured, deployment, samples(1000.0, 100.0))
    return gateway


async def test_the_fleet_says_how_many_of_the_last_answers_came_within_their_interval(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="vllm")
    engine.always(chat(["x"] * 20, prompt_tokens=10))  # at once: far outside of what is predicted
    running = measured(gateway(engines=[engine_at(engine, "a", slots=2)]))
    async with running.client() as client:
        before = (await client.get("/admin/fleet")).json()["deployments"][0]["predictions"]
        for number in range(3):
            answer = await client.post("/v1/chat/completions", json=chat_body(f"{number}", max_tokens=20, stream=True))
            assert answer.status_code == 200
        after = (await client.get("/admin/fleet")).json()["deployments"][0]["predictions"]
    assert (before["held"], before["outcomes"], before["outdated"]) == (None, 0, None)
    assert after["outcomes"] == 3
    assert after["held"] < 0.5
    assert after["spread"] > before["spread"]


async def test_an_explanation_has_the_interval_of_each_and_whom_each_precision_serves(
    scripted: Scripted, gateway: Start
) -> None:
    exact, small = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    props = {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 2, "model_ftype": "F16"}
    exact.routes["GET /props"] = whole({**props, "model_path": "/models/exact.gguf", "build_info": "b11549"})
    running = measured(gateway(engines=[engine_at(exact, "exact"), engine_at(small, "small")]))
    async with running.client() as client:
        told = (await client.post("/admin/explain", json={"model": "m", "prompt": "hi", "max_tokens": 50})).json()
    (candidate,) = told["candidates"]
    assert candidate["deployment"] == "exact"
    assert candidate["total_low_s"] < candidate["total_s"] < candidate["total_high_s"]
    who = {entry["deployment"]: (entry["precision"], entry["quality"], entry["who"]) for entry in told["precisions"]}
    assert who["exact"] == ("fp16", "untested", "16 bits or more: whoever names no precision")
    assert who["small"][:2] == ("int4", "untested")
    assert who["small"][2].endswith("only who asks for it, or when nothing better can serve")
