"""`paceline why` and `paceline top`, typed against a gateway that runs, and after it has ended."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from engines.scripted import ScriptedEngine
from fleets import samples
from gateways import Gateway, chat_body, engine_at
from shell import Shell

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]


def asked(gateway: Start, scripted: Scripted, *ids: str, **settings: object) -> Gateway:
    """Return a gateway that has answered requests of these ids."""
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], **settings)
    for deployment in running.house.fleet.deployments:
        running.call(running.house.fleet.learned.measured, deployment, samples())
    for id_ in ids:
        headers = {"x-request-id": id_, "x-paceline-stage": "retrieval=0.8"}
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=chat_body(stream=True), headers=headers)
        assert answer.status_code == httpx.codes.OK
    return running


def test_why_tells_cause_stages_evidence_and_steps(gateway: Start, scripted: Scripted, shell: Shell) -> None:
    running = asked(gateway, scripted, "slow-one")
    done = shell.run("why", "slow-one", "--url", running.url)
    assert done.returncode == 0, done.stderr
    head = done.stdout.splitlines()[0]
    assert head == "slow: the time went by outside of the model (step 3: input and task)"
    assert "What to do: " in done.stdout
    assert "retrieval (outside)" in done.stdout
    assert "\x1b" not in done.stdout
    told = json.loads(shell.run("why", "slow-one", "--url", running.url, "--json").stdout)
    assert told["why"]["cause"] == "outside"


def test_an_unknown_request_ends_with_1_and_says_so(gateway: Start, scripted: Scripted, shell: Shell) -> None:
    running = asked(gateway, scripted)
    done = shell.run("why", "nobody", "--url", running.url)
    assert done.returncode == 1
    assert "No request 'nobody' is known here" in done.stderr
    without = shell.run("why", "nobody", PACELINE_SERVER__PORT="1")
    assert without.returncode == 1
    assert "no Paceline is running here" in without.stderr


def test_what_a_gateway_has_kept_is_told_after_its_end(
    gateway: Start, scripted: Scripted, shell: Shell, tmp_path: Path
) -> None:
    running = asked(gateway, scripted, "before")
    folder = running.house.settings.data_dir
    running.stop()
    done = shell.run("why", "before", PACELINE_SERVER__PORT="1", PACELINE_DATA=str(folder))
    assert done.returncode == 0, done.stderr
    assert "retrieval" in done.stdout


def test_top_prints_one_frame_into_a_pipe(gateway: Start, scripted: Scripted, shell: Shell) -> None:
    running = asked(gateway, scripted, "first", "second")
    for words in (("top", "--once"), ("top",)):
        done = shell.run(*words, "--url", running.url, COLUMNS="160")
        assert done.returncode == 0, done.stderr
        assert "0 of 512 places taken, 0 waiting" in done.stdout
        assert "DEPLOYMENT" in done.stdout
        assert "second" in done.stdout
        assert "\x1b" not in done.stdout
    now = json.loads(shell.run("top", "--json", "--url", running.url).stdout)
    assert [each["request_id"] for each in now["last"]] == ["second", "first"]
    (deployment,) = now["deployments"]
    assert (deployment["id"], deployment["requests"], deployment["failed"]) == ("a", 2, 0)
    assert deployment["ttft_s"] > 0.0


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "Ctrl+C"])
def test_top_on_a_terminal_goes_on_until_it_is_told_to_end(
    gateway: Start, scripted: Scripted, shell: Shell, key: bytes
) -> None:
    running = asked(gateway, scripted, "shown")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "top", "--every", "0.2", "--url", running.url],
        cwd=shell.folder,
        env={**shell.environment, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=_own_terminal,
    )
    os.close(theirs)
    try:
        text = b""
        while text.count(b"places taken") < 2:
            text += os.read(ours, 65_536)
        os.write(ours, key)
        end = time.monotonic() + 20.0
        while process.poll() is None and time.monotonic() < end:
            text += _rest(ours)
        assert process.wait(1.0) == 0
        text += _rest(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"shown" in text
    assert text.rindex(b"\x1b[?1049l") > text.rindex(b"places taken")  # the screen is as it was
    assert b"Traceback" not in text


def _own_terminal() -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _rest(number: int) -> bytes:
    try:
        return os.read(number, 65_536)
    except OSError:  # the other side is closed
        return b""


def test_top_without_a_gateway_says_how_to_start_one(shell: Shell) -> None:
    done = shell.run("top", "--once", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "paceline up" in done.stderr


async def test_the_log_is_bounded_filtered_and_paged(gateway: Start, scripted: Scripted) -> None:
    running = asked(gateway, scripted, *(f"r{number}" for number in range(6)), requests={"keep": 4})
    async with running.client() as client:
        for _ in range(3):
            await client.post("/v1/chat/completions", content=b"{")
        answer = (await client.get("/admin/requests", params={"model": "m", "limit": 3})).json()
        rest = (await client.get("/admin/requests", params={"model": "m", "before": answer["next"]})).json()
        slow = (await client.get("/admin/requests", params={"slower_than": 1000})).json()
        refused = (await client.get("/admin/requests", params={"ended": "refused"})).json()
    assert [each["request_id"] for each in answer["requests"]] == ["r5", "r4", "r3"]
    assert [each["request_id"] for each in rest["requests"]] == ["r2"]
    assert slow["requests"] == []
    assert len(refused["requests"]) == 1  # those that were not even read push nobody out


async def test_nothing_is_kept_where_that_is_wanted(gateway: Start, scripted: Scripted) -> None:
    running = asked(gateway, scripted, "one", requests={"keep": 0})
    async with running.client() as client:
        answer = await client.get("/admin/requests")
        now = (await client.get("/admin/now")).json()
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "requests_off")
    assert ([each["requests"] for each in now["deployments"]], now["last"]) == ([1], [])
    assert list(running.house.settings.data_dir.glob("requests*")) == []
