"""`paceline soak`: a real llama.cpp is stable, engines with faults are not, and a gateway takes the verdict up."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from engines.llama import LlamaServer
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import chat, cut, hang, status
from engines.signals import Gate
from gateways import Gateway, engine_at
from measurements import deployment
from shell import LIMIT_S, Shell

from adapters.base import Endpoint
from adapters.process import find_listener
from adapters.registry import create
from measure.place import records_in
from measure.soak import Soak
from measure.soak_trial import Role
from measure.soak_verdict import GROWN
from measure.store import Store
from measure.verdicts import Judged
from policies.types import Capability, Quality


async def strict(exchange: Exchange) -> None:
    """Answers what is right and refuses what is not, as an engine should."""
    body = exchange.request.json
    wrong = not isinstance(body.get("messages"), list) or len(exchange.request.body) > 8000
    await (status(400) if wrong else chat(["The ", "lighthouse."]))(exchange)


async def steady(exchange: Exchange) -> None:
    """The same, and takes its time: beside it, what other tests do to this machine's is little."""
    await asyncio.sleep(0.06)
    await strict(exchange)


def configuration(url: str) -> str:
    return f"engines: [{{name: near, url: '{url}'}}]\nrouting: {{measure_at_start: false}}\nserver: {{port: 1}}"


def soaked(shell: Shell, *words: str) -> tuple[int, Any]:
    done = shell.run("soak", "--json", *words)
    return done.returncode, json.loads(done.stdout)["deployments"]


@pytest.mark.llamacpp
async def test_a_real_llamacpp_answers_all_that_is_right_and_refuses_all_that_is_not(
    llamacpp: LlamaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("measure.soak_plan.LENGTHS", (16, 64))
    adapter = create("llamacpp", Endpoint(name="engine", url=llamacpp.url))
    pid = find_listener(urlsplit(llamacpp.url).port or 0)
    assert pid is not None
    which = deployment(engine_model=llamacpp.model)
    soak = Soak(lambda: adapter, which, requests=30, pid=lambda: pid)
    verdict = await soak.run()
    await adapter.aclose()
    assert verdict.failures == ()
    assert (verdict.cancelled, verdict.invalid, verdict.took) == (3, 3, 0)
    assert (verdict.same, verdict.repeated) == (6, 6)
    assert verdict.ttft is not None
    assert verdict.memory is not None
    assert verdict.memory.low < GROWN


def test_an_engine_that_answers_everything_is_stable_from_the_next_look_on(
    shell: Shell, engine: ScriptedEngine
) -> None:
    engine.always(steady)
    shell.configure(configuration(engine.url))
    code, results = soaked(shell, "-n", "30", "near")
    assert (code, results["near"]["stable"]) == (0, True), results
    assert (results["near"]["invalid"], results["near"]["took"]) == (3, 0)
    (entry,) = json.loads(shell.run("models", "--json").stdout)["deployments"]
    assert entry["stable"] is True


def test_the_engines_of_a_paceline_that_runs_are_soaked_under_its_fingerprints(
    shell: Shell, engine: ScriptedEngine
) -> None:
    engine.always(steady)
    shell.configure(configuration(engine.url))
    running = shell.up()
    code, _ = soaked(shell, "-n", "24", "--url", running.url)
    assert code == 0
    (entry,) = running.get("/admin/fleet")["deployments"]
    store = Store(records_in(Path(shell.environment["PACELINE_DATA"])))
    assert store.load_verdicts(Judged.STABILITY)[entry["fingerprint"]]["stable"] is True
    store.close()


def test_failures_are_listed_and_never_stop_the_others(shell: Shell, engine: ScriptedEngine) -> None:
    engine.next(*[strict] * 5, cut(after=1), *[strict] * 8, status(500), strict, chat([]))
    engine.always(strict)
    shell.configure(configuration(engine.url))
    code, results = soaked(shell, "-n", "30")
    assert code == 1
    assert results["near"]["requests"] == 30
    assert results["near"]["kinds"] == {"interrupted": 1, "broken": 1, "empty": 1}
    told = shell.run("soak", "-n", "5")
    assert told.returncode == 1
    assert "near: not shown to be stable\n  because only 5 requests were made" in told.stdout


def test_an_engine_whose_first_token_takes_longer_and_longer_is_not_stable(
    shell: Shell, engine: ScriptedEngine
) -> None:
    asked = 0

    async def slower(exchange: Exchange) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.003 * asked)
        await strict(exchange)

    engine.always(slower)
    shell.configure(configuration(engine.url))
    code, results = soaked(shell, "-n", "30")
    assert code == 1
    assert results["near"]["ttft"]["low"] > 0.1


async def test_what_a_soak_sends_is_mixed_and_its_cancelled_requests_are_left(
    scripted: Callable[..., ScriptedEngine],
) -> None:
    engine = scripted(kind="llamacpp")
    gate = Gate(3)

    async def script(exchange: Exchange) -> None:
        endless = exchange.request.json.get("max_tokens") == 256
        await (chat(["a "] * 50, gate=gate) if endless else strict)(exchange)

    engine.always(script)
    adapter = create("llamacpp", Endpoint(name="engine", url=engine.url))
    soak = Soak(lambda: adapter, deployment(context=1024), requests=12, seed=7)
    soak.plan = soak.plan[:8]  # without those that are made again
    verdict = await soak.run()
    await adapter.aclose()
    assert verdict.failures == ()
    (left,) = [request for request in engine.requests if request.json.get("max_tokens") == 256]
    await left.left.wait()
    bodies = [request.json for request in engine.requests]
    repeated = [trial.number for trial in soak.trials if trial.asked.role is Role.REPEATED]
    assert bodies[repeated[0]]["messages"] == bodies[repeated[1]]["messages"]
    texts = [json.dumps(body.get("messages")) for body in bodies]
    assert len(set(texts)) == len(texts) - 1


@pytest.mark.parametrize("kind", ["llamacpp", "vllm", "ollama", "mlx", "openai"])
@pytest.mark.parametrize("able", [Capability.CHAT, Capability.COMPLETION, Capability.EMBEDDINGS])
async def test_every_kind_of_engine_and_operation_can_be_soaked(
    scripted: Callable[..., ScriptedEngine], kind: str, able: Capability
) -> None:
    engine = scripted(kind=kind)
    adapter = create(kind, Endpoint(name="engine", url=engine.url))
    which = deployment(engine=kind, engine_model=engine.model, capabilities=frozenset({able}), context=512)
    soak = Soak(lambda: adapter, which, requests=24, seed=7)
    verdict = await soak.run()
    await adapter.aclose()
    # Times of a few milliseconds on a machine that runs other tests may be too uncertain for a verdict.
    assert verdict.stable or not verdict.conclusive, verdict.reasons
    assert all("time to the first token" in reason for reason in verdict.reasons), verdict.reasons
    assert (verdict.same, verdict.repeated) == (4, 4)
    assert all(trial.answer for trial in soak.trials if trial.asked.role is Role.ANSWER)


async def test_silence_is_a_failure_and_the_next_request_is_made(
    scripted: Callable[..., ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("measure.soak.REQUEST_LIMIT_S", 0.3)
    engine = scripted(kind="llamacpp")
    engine.next(strict, hang(), chat(["!"] * 20), chat(["\N{REPLACEMENT CHARACTER}a"]))
    engine.always(strict)
    adapter = create("llamacpp", Endpoint(name="engine", url=engine.url))
    soak = Soak(lambda: adapter, deployment(), requests=8)
    verdict = await soak.run()
    await adapter.aclose()
    assert [failure.kind for failure in verdict.failures] == ["timed out", "one character only", "broken Unicode"]
    assert verdict.requests == 8


async def test_an_engine_that_is_gone_ends_the_soak(
    scripted: Callable[..., ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("measure.soak.RECOVERY_LIMIT_S", 0.2)
    engine = scripted(kind="llamacpp")
    adapter = create("llamacpp", Endpoint(name="engine", url=engine.url))
    engine.stop()
    verdict = await Soak(lambda: adapter, deployment(), requests=50).run()
    await adapter.aclose()
    assert verdict.requests == 1
    assert "it did not come back after the last failure" in verdict.reasons


def test_ctrl_c_gives_the_verdict_on_what_was_done(shell: Shell, engine: ScriptedEngine) -> None:
    engine.next(*[strict] * 6)
    engine.always(chat(["never"], gate=Gate()))
    shell.configure(configuration(engine.url))
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "soak", "--json"],
        cwd=shell.folder,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    engine.received_blocking(6, LIMIT_S)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, err
    result = json.loads(out)["deployments"]["near"]
    assert (result["requests"], result["planned"], result["conclusive"]) == (6, 50, False)
    assert "Traceback" not in err


def test_a_word_that_means_nobody_is_typed_wrongly(shell: Shell, engine: ScriptedEngine) -> None:
    shell.configure(configuration(engine.url))
    done = shell.run("soak", "nera")
    assert done.returncode == 2
    assert "near" in done.stderr
    assert engine.requests == []


def test_a_gateway_that_runs_takes_new_verdicts_up(
    gateway: Callable[..., Gateway], scripted: Callable[..., ScriptedEngine]
) -> None:
    engine = scripted(kind="llamacpp")
    running = gateway(engines=[engine_at(engine, "a")])
    (before,) = running.call(lambda: running.house.fleet.deployments)
    assert (before.stable, before.quality) == (False, Quality.UNTESTED)
    store = Store(records_in(running.house.settings.data_dir))
    store.save_verdict(Judged.STABILITY, before.fingerprint, {"stable": True})
    store.save_verdict(Judged.QUALITY, before.fingerprint, {"quality": "passed"})
    store.close()
    running.run(running.house.verdicts.look())
    (after,) = running.call(lambda: running.house.fleet.deployments)
    assert (after.stable, after.quality) == (True, Quality.PASSED)
