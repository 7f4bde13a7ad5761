"""`paceline experiment` and `paceline switch` against a gateway that runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import httpx
import pytest
from engines.scripted import ScriptedEngine
from gateways import Gateway, chat_body, engine_at
from typer.testing import CliRunner, Result

from gateway.cli.app import app
from gateway.cli.output import UserError

Run = Callable[..., Result]


@pytest.fixture
def running(scripted: Callable[..., ScriptedEngine], gateway: Callable[..., Gateway]) -> Gateway:
    return gateway(engines=[engine_at(scripted(kind="vllm"), "a"), engine_at(scripted(kind="vllm"), "b")])


@pytest.fixture
def run(running: Gateway) -> Run:
    def invoke(*words: str, fails: bool = False) -> Result:
        done = CliRunner().invoke(app, [*words, "--url", running.url])
        assert (done.exit_code != 0) is fails, done.output
        return done

    return invoke


def ask(running: Gateway, times: int) -> set[str]:
    answers = [httpx.post(f"{running.url}/v1/chat/completions", json=chat_body(), timeout=20) for _ in range(times)]
    assert {answer.status_code for answer in answers} == {200}
    return {answer.headers["x-paceline-deployment"] for answer in answers}


def test_an_experiment_is_begun_ramped_looked_at_and_stopped(running: Gateway, run: Run) -> None:
    assert "No experiments" in run("experiment").output
    begun = run("experiment", "start", "e", "-m", "m", "--arm", "one=a", "--arm", "two=b", "--ramp", "25,50")
    assert "25% to the new, next 50%" in begun.output
    run("experiment", "ramp", "e")
    assert ask(running, 30) == {"a", "b"}
    told = run("experiment", "report", "e").output
    assert "nothing shown yet" in told
    assert "total s" in told
    assert "two is stopped by itself" in told
    assert re.search(r"errors .*100 points more: within \d+ requests", told)
    report = json.loads(run("experiment", "report", "e", "--json").output)
    assert sum(arm["requests"] for arm in report["arms"]) == 30
    run("experiment", "ramp", "e", "--to", "10")
    assert "over: stopped by command" in run("experiment", "stop", "e").output
    assert "stopped by command" in run("experiment", "list").output


def test_what_is_no_arm_is_refused_with_an_example(run: Run) -> None:
    done = run("experiment", "start", "e", "-m", "m", "--arm", "one", "--arm", "two=b", fails=True)
    assert "NAME=WHO" in done.output


def test_an_experiment_that_there_is_not_is_said_to_be_none(run: Run) -> None:
    done = run("experiment", "report", "unknown", fails=True)
    assert isinstance(done.exception, UserError)
    assert "There is no experiment 'unknown'" in done.exception.message


def test_a_model_is_switched_and_switched_back_by_the_command_that_it_prints(running: Gateway, run: Run) -> None:
    told = run("switch", "m", "--to", "b").output
    assert "m: 100% of its requests go to b." in told
    assert ask(running, 5) == {"b"}
    back = told.splitlines()[-1].partition("paceline ")[2].split()
    assert run(*back).output == "m is routed as before.\n"
    assert json.loads(run("switch", "m", "--to", "b", "--ramp", "--json").output)["share"] == 0.05


def test_a_switch_wants_to_know_where_to(run: Run) -> None:
    done = run("switch", "m", fails=True)
    assert isinstance(done.exception, UserError)
    assert done.exception.status == 2
