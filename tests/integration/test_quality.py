"""`paceline quality` on engines that answer as they are told: verdicts, what is kept of them, and what is sent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import Script, chat, hang, status, whole
from gateways import Gateway
from shell import LIMIT_S, Shell

from measure.place import records_in
from measure.quality.suite import SUITE
from measure.store import Store
from measure.verdicts import Judged
from policies.types import Quality

Start = Callable[[str], ScriptedEngine]


def answering(change: Callable[[str], str] = lambda text: text, **refuse: int) -> Script:
    """Answers each prompt with a text of its own, changed; prompts with a certain word are refused with a status."""

    async def script(exchange: Exchange) -> None:
        asked = str(exchange.request.json["messages"])
        for word, code in refuse.items():
            if word in asked:
                return await status(code)(exchange)
        text = change(f"It is said that {sum(asked.encode())} is the answer to this, and it may well be so.")
        return await chat([f"{word} " for word in text.split()])(exchange)

    return script


def other(text: str) -> str:
    return " ".join(reversed(text.split()))


@pytest.fixture
def start(scripted: Callable[..., ScriptedEngine]) -> Start:
    """Starts llama.cpps that say what precision they run."""

    def begin(file_type: str) -> ScriptedEngine:
        engine = scripted(kind="llamacpp", model=f"tiny-{file_type}.gguf")
        props = {
            "default_generation_settings": {"n_ctx": 4096, "params": {}},
            "total_slots": 1,
            "model_ftype": file_type,
            "model_path": f"/models/tiny-{file_type}.gguf",
            "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True},
            "build_info": "b11549-c0ffee00",
        }
        engine.routes["GET /props"] = whole(props)
        engine.routes["GET /slots"] = whole([{"id": 0, "is_processing": False}])
        engine.always(answering())
        return engine

    return begin


def configure(shell: Shell, **engines: ScriptedEngine) -> None:
    listed = [{"name": name, "url": engine.url, "models": {engine.model: "tiny"}} for name, engine in engines.items()]
    shell.configure(json.dumps({"engines": listed, "routing": {"measure_at_start": False}, "server": {"port": 1}}))


def regress(shell: Shell, *words: str) -> tuple[int, Any]:
    done = shell.run("quality", "--json", *words)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def listed(shell: Shell) -> dict[str, tuple[str, str]]:
    """Each deployment's quality and why, as `paceline models` knows it."""
    deployments = json.loads(shell.run("models", "--json").stdout)["deployments"]
    return {entry["id"]: (entry["quality"], entry["quality_why"]) for entry in deployments}


def test_a_candidate_that_answers_alike_passes_and_serves_whoever_asked_for_no_precision(
    shell: Shell, start: Start
) -> None:
    configure(shell, f16=start("F16"), q8=start("Q8_0"))
    assert listed(shell) == {"f16": ("untested", ""), "q8": ("untested", "")}
    code, results = regress(shell)
    assert code == 0
    verdict = results["deployments"]["q8"]
    assert (verdict["quality"], verdict["unanswered"]) == ("passed", 0)
    assert verdict["prompts"] == len(SUITE)
    assert verdict["baseline"]["deployment"] == "f16"
    assert verdict["means"]["identical"] == 1.0
    kept = listed(shell)
    assert kept["q8"][0] == "passed"
    assert "no harm" in kept["q8"][1]
    assert kept["f16"][0] == "baseline"
    told = json.loads(shell.run("explain", "hello", "--model", "tiny", "--json").stdout)
    assert {entry["deployment"] for entry in told["candidates"]} == {"f16", "q8"}


def test_a_candidate_that_answers_otherwise_fails_with_a_reason_and_a_report(shell: Shell, start: Start) -> None:
    harmed = start("Q4_0")
    harmed.always(answering(other))
    configure(shell, f16=start("F16"), q4=harmed)
    done = shell.run("quality", "--report", "made/report")
    assert done.returncode == 1
    assert "q4: failed: words that differ" in done.stdout
    assert "Traceback" not in done.stderr
    quality, why = listed(shell)["q4"]
    assert quality == "failed"
    assert "words that differ" in why
    for name in ("quality.md", "quality.html"):
        report = (shell.folder / "made/report" / name).read_text()
        assert "It is said that" in report
        assert "so. be well may it" in report


def test_an_update_of_the_engine_makes_it_untested(shell: Shell, start: Start) -> None:
    q8 = start("Q8_0")
    configure(shell, f16=start("F16"), q8=q8)
    assert regress(shell)[0] == 0
    props = {"model_ftype": "Q8_0", "build_info": "b11550-c0ffee01", "total_slots": 1}
    q8.routes["GET /props"] = whole(props)
    assert listed(shell)["q8"] == ("untested", "")


def test_a_part_of_the_suite_gives_a_verdict_that_is_not_kept(shell: Shell, start: Start) -> None:
    configure(shell, f16=start("F16"), q8=start("Q8_0"))
    code, results = regress(shell, "--limit", "40")
    assert (code, results["kept"]) == (0, False)
    assert results["deployments"]["q8"]["prompts"] == 40
    assert listed(shell)["q8"] == ("untested", "")


def test_a_candidate_that_stops_answering_stays_untested_and_the_others_are_tested(shell: Shell, start: Start) -> None:
    broken = start("Q4_0")
    broken.always(status(500))
    configure(shell, f16=start("F16"), q4=broken, q8=start("Q8_0"))
    code, results = regress(shell)
    assert code == 1
    found = {id_: each["quality"] for id_, each in results["deployments"].items()}
    assert found == {"f16": "baseline", "q4": "untested", "q8": "passed"}
    assert "stopped answering: Broken" in results["deployments"]["q4"]["why"]
    assert listed(shell)["q4"] == ("untested", "")


def test_prompts_that_one_of_the_two_refuses_are_left_out(shell: Shell, start: Start) -> None:
    f16, q8 = start("F16"), start("Q8_0")
    f16.always(answering(Harbour=400))
    q8.always(answering(Farid=400))
    configure(shell, f16=f16, q8=q8)
    code, results = regress(shell)
    verdict = results["deployments"]["q8"]
    assert (code, verdict["quality"], verdict["unanswered"]) == (0, "passed", 1)
    refused = sum("Harbour" in str(prompt.messages) for prompt in SUITE)
    assert verdict["prompts"] == len(SUITE) - refused - 1


def test_a_failure_that_passes_is_tried_again(shell: Shell, start: Start) -> None:
    q8 = start("Q8_0")
    q8.next(status(503))
    configure(shell, f16=start("F16"), q8=q8)
    verdict = regress(shell)[1]["deployments"]["q8"]
    assert (verdict["prompts"], verdict["unanswered"]) == (len(SUITE), 0)


def test_a_baseline_that_does_not_answer_is_told(shell: Shell, start: Start) -> None:
    f16 = start("F16")
    f16.always(status(500))
    configure(shell, f16=f16, q8=start("Q8_0"))
    code, results = regress(shell)
    assert code == 1
    assert "Broken" in results["given_up"]["f16"]
    assert results["deployments"] == {}


def test_what_is_sent_is_greedy_short_and_the_same_for_both(shell: Shell, start: Start) -> None:
    f16, q8 = start("F16"), start("Q8_0")
    configure(shell, f16=f16, q8=q8)
    regress(shell, "--category", "tools")
    sent = [[request.json for request in engine.requests] for engine in (f16, q8)]
    for body in sent[0] + sent[1]:
        assert (body["temperature"], body["logprobs"], body["cache_prompt"]) == (0, True, False)
        assert body["repeat_penalty"] == 1.0
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        del body["model"]
    assert sent[0] == sent[1]
    assert [body["tool_choice"] for body in sent[0] if "tools" in body] == ["required"] * 3


def test_who_knows_no_tools_is_not_asked_to_use_them(shell: Shell, start: Start) -> None:
    q8 = start("Q8_0")
    q8.routes["GET /props"] = whole({"model_ftype": "Q8_0", "default_generation_settings": {"n_ctx": 4096}})
    configure(shell, f16=start("F16"), q8=q8)
    assert regress(shell)[1]["deployments"]["q8"]["prompts"] == sum(not prompt.tools for prompt in SUITE)
    assert not any("tools" in request.json for request in q8.requests)


def test_prompts_that_are_too_long_for_one_are_asked_of_neither(shell: Shell, start: Start) -> None:
    q8 = start("Q8_0")
    q8.routes["GET /props"] = whole({"model_ftype": "Q8_0", "default_generation_settings": {"n_ctx": 300}})
    configure(shell, f16=start("F16"), q8=q8)
    scores = regress(shell)[1]["deployments"]["q8"]["scores"]
    assert "context" not in {score["category"] for score in scores}


def test_ones_own_samples_are_asked_as_well(shell: Shell, start: Start) -> None:
    configure(shell, f16=start("F16"), q8=start("Q8_0"))
    (shell.folder / "own.jsonl").write_text(
        '{"prompt": "What?", "expect": "answer"}\n{"prompt": "Who?", "regex": "x"}\n'
    )
    _, results = regress(shell, "--samples", "own.jsonl")
    verdict = results["deployments"]["q8"]
    own = {score["category"]: score for score in verdict["scores"]}["samples"]
    assert (own["prompts"], own["baseline"], own["candidate"]) == (2, 1, 1)
    assert "samples" in verdict["suite"]


def test_samples_with_mistakes_are_typed_wrongly(shell: Shell, start: Start) -> None:
    configure(shell, f16=start("F16"))
    (shell.folder / "own.jsonl").write_text('{"prompt": "What?", "expects": "answer"}')
    done = shell.run("quality", "--samples", "own.jsonl")
    assert done.returncode == 2
    assert "own.jsonl:1 has an unknown field 'expects'" in done.stderr


def test_deployments_that_do_not_run_are_typed_wrongly(shell: Shell, start: Start) -> None:
    configure(shell, f16=start("F16"), q8=start("Q8_0"))
    for words in (("q9",), ("--baseline", "f17"), ("--category", "poems")):
        done = shell.run("quality", *words)
        assert done.returncode == 2, words
        assert words[-1] in done.stderr


def test_without_a_quantised_deployment_there_is_nothing_to_test(shell: Shell, start: Start) -> None:
    configure(shell, f16=start("F16"))
    done = shell.run("quality")
    assert done.returncode == 0
    assert "nothing to test" in done.stdout


def test_live_traffic_goes_first_for_a_while(shell: Shell, start: Start) -> None:
    q8 = start("Q8_0")
    sent_before: list[int] = []

    async def busy_twice(exchange: Exchange) -> None:
        sent_before.append(len(q8.requests))
        await whole([{"id": 0, "is_processing": len(sent_before) <= 2}])(exchange)

    q8.routes["GET /slots"] = busy_twice
    configure(shell, f16=start("F16"), q8=q8)
    assert regress(shell, "--category", "tools")[0] == 1  # too few prompts for a verdict
    assert len(q8.requests) == 9
    assert sent_before[:3] == [0, 0, 0]


def test_ctrl_c_keeps_the_verdicts_that_are_there(shell: Shell, start: Start) -> None:
    stuck = start("Q4_0")
    stuck.always(hang())
    configure(shell, f16=start("F16"), q4=stuck, q8=start("Q8_0"))
    command = [sys.executable, "-m", "gateway", "quality", "--json", "q8", "q4"]
    process = subprocess.Popen(
        command, cwd=shell.folder, env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    shell.started.append(process)
    received = stuck.received_blocking(0, LIMIT_S)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    received.left.wait_blocking(LIMIT_S)
    assert json.loads(out)["interrupted"] is True
    assert (listed(shell)["q8"][0], listed(shell)["q4"][0]) == ("passed", "untested")


def test_a_gateway_that_runs_takes_a_verdict_up(gateway: Callable[..., Gateway], start: Start, tmp_path: Path) -> None:
    engines = {"f16": start("F16"), "q8": start("Q8_0")}
    settings = [{"name": name, "url": each.url, "models": {each.model: "tiny"}} for name, each in engines.items()]
    running = gateway(engines=settings)
    fingerprint = {each.id: each.fingerprint for each in running.house.fleet.deployments}["q8"]
    store = Store(records_in(running.house.settings.data_dir))
    store.save_verdict(Judged.QUALITY, fingerprint, {"quality": "passed", "why": "no harm"})
    store.close()
    running.run(running.house.verdicts.look())
    (q8,) = (each for each in running.house.fleet.deployments if each.id == "q8")
    assert q8.quality is Quality.PASSED
    assert running.house.fleet.quality_why(q8) == "no harm"


def test_a_precision_that_the_configuration_trusts_needs_no_test(gateway: Callable[..., Gateway], start: Start) -> None:
    q8, q4 = start("Q8_0"), start("Q4_0")
    settings = [{"name": each.model[5:9], "url": each.url, "models": {each.model: "tiny"}} for each in (q8, q4)]
    running = gateway(engines=settings, models={"tiny": {"trusted_precision": "int8"}})
    found = {each.id: (each.quality, running.house.fleet.quality_why(each)) for each in running.house.fleet.deployments}
    assert found == {"Q8_0": (Quality.PASSED, "stated by configuration"), "Q4_0": (Quality.UNTESTED, "")}
