"""A managed engine's life: start, readiness, crash and restart, stop. The engines are real processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
from engines import little
from engines.processes import pids_in, runs, wait_gone
from engines.signals import LIMIT_S

from adapters.base import EngineDescription, ModelDescription
from adapters.errors import Broken, Unreachable
from adapters.launch import CannotStart, Command, LaunchError, LaunchSpec
from adapters.managed import Backoff, EngineState, ManagedEngine
from adapters.transport import Transport

QUICK = Backoff(first_s=0.01, most_s=0.02, patience=3, slow_s=0.05)
SPEC = LaunchSpec("little", "little", stop_timeout_s=5)


class Life:
    """A managed little engine and every state that it has been in."""

    def __init__(self, *options: str, spec: LaunchSpec = SPEC, backoff: Backoff = QUICK, **more: object) -> None:
        self.states: list[EngineState] = []
        self.on_state: Callable[[EngineState], object] = lambda state: None
        self._changed = asyncio.Event()

        def build(_: LaunchSpec, port: int) -> Command:
            return Command(little.arguments(*options, port=port), spec.env, "", "/health")

        more = {"build": build} | more
        self.engine = ManagedEngine(spec, on_change=self._note, backoff=backoff, **more)  # type: ignore[arg-type]

    def _note(self, engine: ManagedEngine) -> None:
        self.states.append(engine.state)
        self.on_state(engine.state)
        self._changed.set()

    async def up(self) -> int:
        """Start it, wait until it is up, and return its process."""
        self.engine.start()
        async with asyncio.timeout(LIMIT_S):
            await self.engine.wait_up()
        assert self.engine.pid is not None
        return self.engine.pid

    async def seen(self, *states: EngineState) -> None:
        """Wait until the last states were these."""
        async with asyncio.timeout(LIMIT_S):
            while tuple(self.states[-len(states) :]) != states:
                self._changed.clear()
                await self._changed.wait()

    async def exit(self, status: int) -> None:
        """Let the engine end by itself."""
        transport = Transport(self.engine.url)
        with contextlib.suppress(Broken, Unreachable):
            await transport.request("GET", f"/exit?status={status}")
        await transport.aclose()


@pytest.fixture
async def life() -> AsyncIterator[Callable[..., Life]]:
    """Makes lives that end with the test."""
    made: list[Life] = []

    def make(*options: str, **more: object) -> Life:
        made.append(Life(*options, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        await each.engine.stop()


async def test_it_starts_on_a_free_port_is_up_once_it_answers_and_is_gone_after_stop(life: Callable[..., Life]) -> None:
    little_life = life()
    pid = await little_life.up()
    engine = little_life.engine
    assert psutil.Process(pid).cmdline()[3] == little.__file__
    assert engine.up
    assert engine.url.startswith("http://127.0.0.1:")
    await engine.stop()
    assert not runs(pid)
    assert engine.pid is None
    assert little_life.states == [EngineState.STARTING, EngineState.UP, EngineState.STOPPED]


async def test_an_engine_that_crashes_is_started_again_at_the_same_address(life: Callable[..., Life]) -> None:
    little_life = life()
    first, url = await little_life.up(), little_life.engine.url
    await little_life.exit(3)
    await little_life.seen(EngineState.UP, EngineState.RESTARTING, EngineState.UP)
    assert little_life.engine.pid != first
    assert little_life.engine.url == url


async def test_what_ended_it_is_told(life: Callable[..., Life]) -> None:
    little_life = life("--say", "out of luck", backoff=Backoff())
    pid = await little_life.up()
    await little_life.exit(3)
    await little_life.seen(EngineState.RESTARTING)
    assert little_life.engine.note == "ended with status 3 (out of luck)"
    pid = await little_life.up()
    os.kill(pid, signal.SIGKILL)
    await little_life.seen(EngineState.UP, EngineState.RESTARTING)
    assert little_life.engine.note == "killed by SIGKILL (out of luck)"


async def test_a_crash_loop_is_called_failed_once_and_goes_on_slowly_until_it_is_repaired(
    life: Callable[..., Life], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken").touch()
    little_life = life("--fail-while", str(tmp_path / "broken"))
    little_life.engine.start()
    failed = EngineState.FAILED
    await little_life.seen(EngineState.RESTARTING, EngineState.RESTARTING, failed, failed, failed)
    assert [r.levelno for r in caplog.records].count(logging.ERROR) == 1
    assert [r.levelno for r in caplog.records].count(logging.WARNING) == 2
    (tmp_path / "broken").unlink()
    await little_life.seen(failed, EngineState.UP)


def test_pauses_double_to_a_limit_and_end_in_a_slow_pace() -> None:
    backoff = Backoff(first_s=1, most_s=5, patience=5, slow_s=100)
    assert [backoff.pause_s(failures) for failures in range(1, 8)] == [1, 2, 4, 5, 100, 100, 100]


async def test_failures_are_forgotten_after_a_stable_time(life: Callable[..., Life]) -> None:
    little_life = life(backoff=Backoff(first_s=0.01, stable_s=0, patience=2))
    for _ in range(3):
        await little_life.up()
        await little_life.exit(1)
        await little_life.seen(EngineState.UP, EngineState.RESTARTING)
    assert little_life.engine.failures == 1


async def test_one_that_ends_while_it_starts_is_seen_at_once_with_its_last_lines(
    life: Callable[..., Life], tmp_path: Path
) -> None:
    little_life = life("--fail-while", str(tmp_path), "--say", "no such model")
    with pytest.raises(LaunchError, match=r"ended with status 9; its last lines:\nno such model"):
        await little_life.up()


async def test_one_that_is_never_ready_fails_with_its_last_lines_and_is_ended(life: Callable[..., Life]) -> None:
    spec = LaunchSpec("little", "little", ready_timeout_s=1.5)
    little_life = life("--never-ready", "--say", "still thinking", spec=spec, backoff=Backoff())
    little_life.engine.start()
    with pytest.raises(LaunchError, match=r"not ready within 1.5 s; its last lines:\nstill thinking"):
        await little_life.engine.wait_up()
    assert little_life.engine.pid is None
    assert little_life.engine.state is EngineState.RESTARTING


async def test_a_missing_program_fails_without_a_second_try(life: Callable[..., Life]) -> None:
    def build(spec: LaunchSpec, port: int) -> Command:
        raise CannotStart("there is no such engine")

    little_life = life(build=build)
    with pytest.raises(LaunchError, match="there is no such engine"):
        await little_life.up()
    assert little_life.states == [EngineState.STARTING, EngineState.FAILED]


async def test_a_program_that_cannot_run_fails_with_its_name(life: Callable[..., Life]) -> None:
    little_life = life(build=lambda spec, port: Command(("/no/such/program",), {}, "", "/"))
    with pytest.raises(LaunchError, match=r"cannot start /no/such/program: .*No such file"):
        await little_life.up()


async def test_a_chosen_port_that_is_taken_is_named_with_its_owner_and_used_once_it_is_free(
    life: Callable[..., Life],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        little_life = life(spec=LaunchSpec("little", "little", port=port))
        with pytest.raises(LaunchError, match=f"port {port} is in use by process {os.getpid()}"):
            await little_life.up()
    await little_life.seen(EngineState.UP)
    assert little_life.engine.url == f"http://127.0.0.1:{port}"


async def test_another_free_port_is_chosen_when_somebody_takes_it(life: Callable[..., Life]) -> None:
    little_life = life(backoff=Backoff(first_s=0.01))
    await little_life.up()
    url = little_life.engine.url
    with contextlib.ExitStack() as taken:

        def take(state: EngineState) -> None:
            if state is EngineState.RESTARTING:
                taken.enter_context(socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))))

        little_life.on_state = take
        await little_life.exit(1)
        await little_life.seen(EngineState.RESTARTING, EngineState.UP)
    assert little_life.engine.url != url


async def test_a_stranger_that_answers_on_its_port_is_not_taken_for_it(life: Callable[..., Life]) -> None:
    strangers: list[HTTPServer] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    def build(_: LaunchSpec, port: int) -> Command:
        strangers.append(HTTPServer(("127.0.0.1", port), Stranger))
        threading.Thread(target=strangers[-1].serve_forever, daemon=True).start()
        return Command(tuple(little.SLEEPER), {}, "", "/")

    little_life = life(spec=LaunchSpec("little", "little", stop_timeout_s=0.1), build=build, backoff=Backoff())
    with pytest.raises(LaunchError, match=f"process {os.getpid()} took port"):
        await little_life.up()
    await little_life.engine.stop()
    for stranger in strangers:
        stranger.shutdown()
        stranger.server_close()


async def test_it_can_be_stopped_while_it_starts(life: Callable[..., Life], tmp_path: Path) -> None:
    started = asyncio.Event()

    async def never(url: str) -> bool:
        started.set()
        return False

    little_life = life(healthy=never)
    little_life.engine.start()
    waiting = asyncio.create_task(little_life.engine.wait_up())
    async with asyncio.timeout(LIMIT_S):
        await started.wait()
    pid = little_life.engine.pid
    await little_life.engine.stop()
    assert pid is not None
    assert not runs(pid)
    assert little_life.engine.state is EngineState.STOPPED
    with pytest.raises(LaunchError, match="stopped"):
        await waiting


async def test_it_can_be_stopped_before_it_has_begun_and_between_two_starts(life: Callable[..., Life]) -> None:
    at_once = life()
    at_once.engine.start()
    await at_once.engine.stop()
    assert at_once.states[-1] is EngineState.STOPPED
    between = life(backoff=Backoff(first_s=1000))
    await between.up()
    await between.exit(1)
    await between.seen(EngineState.RESTARTING)
    await between.engine.stop()
    assert between.states[-1] is EngineState.STOPPED


async def test_several_may_stop_it_at_once_and_all_wait_for_its_end(life: Callable[..., Life]) -> None:
    little_life = life("--stubborn", spec=LaunchSpec("little", "little", stop_timeout_s=0.2))
    pid = await little_life.up()
    first, second = asyncio.create_task(little_life.engine.stop()), asyncio.create_task(little_life.engine.stop())
    await second
    assert not runs(pid)
    await first
    assert little_life.states.count(EngineState.STOPPED) == 1


async def test_it_can_be_started_again_after_it_was_stopped(life: Callable[..., Life]) -> None:
    little_life = life()
    first = await little_life.up()
    await little_life.engine.stop()
    assert await little_life.up() != first


async def test_a_health_check_of_the_owner_replaces_the_usual_one(life: Callable[..., Life]) -> None:
    asked: list[str] = []

    async def healthy(url: str) -> bool:
        asked.append(url)
        if len(asked) == 1:
            raise Unreachable("not yet")
        return len(asked) == 3

    little_life = life("--never-ready", healthy=healthy)
    await little_life.up()
    assert asked == [little_life.engine.url] * 3


async def test_it_gets_its_own_variables_and_none_of_pacelines(
    life: Callable[..., Life], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_AUTH__KEY", "secret")
    monkeypatch.setenv("SOMETHING_ELSE", "stays")
    spec = LaunchSpec("little", "little", env={"ENGINE_OPTION": "1"})
    await life("--environment", str(tmp_path / "names"), spec=spec).up()
    names = (tmp_path / "names").read_text().split("\n")
    assert {"SOMETHING_ELSE", "ENGINE_OPTION"} <= set(names)
    assert not [name for name in names if name.startswith("PACELINE_")]


async def test_a_description_is_completed_by_what_only_its_starter_knows(life: Callable[..., Life]) -> None:
    def build(_: LaunchSpec, port: int) -> Command:
        return Command(little.arguments(port=port), {}, "", "/health", version="package 1.2")

    little_life = life(build=build)
    await little_life.up()
    said = EngineDescription("little", "Little", "b0-unknown", (ModelDescription("m", settings="fast"),))
    completed = little_life.engine.complete(said)
    assert completed.version == "package 1.2"
    assert completed.models[0].settings == f"fast launch={SPEC.digest}"


async def test_ctrl_c_at_the_terminal_does_not_reach_it(life: Callable[..., Life]) -> None:
    pid = await life().up()
    assert os.getsid(pid) == pid != os.getsid(0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
@pytest.mark.parametrize("how", ["stopped", "crashed"])
async def test_its_children_and_those_that_left_it_end_with_it(
    life: Callable[..., Life], tmp_path: Path, how: str
) -> None:
    spec = LaunchSpec("little", "little", stop_timeout_s=0.1)
    little_life = life("--family", str(tmp_path / "family"), spec=spec, backoff=Backoff(first_s=1000))
    await little_life.up()
    family = pids_in(tmp_path / "family")
    assert all(runs(pid) for pid in family)
    if how == "stopped":
        await little_life.engine.stop()
    else:
        await little_life.exit(1)
        await little_life.seen(EngineState.RESTARTING)
    assert not [pid for pid in family if runs(pid)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
async def test_an_engine_whose_guard_is_killed_ends_and_is_started_again(life: Callable[..., Life]) -> None:
    little_life = life()
    pid = await little_life.up()
    guard = psutil.Process(pid).ppid()
    assert guard != os.getpid()
    os.kill(guard, signal.SIGKILL)
    await little_life.seen(EngineState.UP, EngineState.RESTARTING, EngineState.UP)
    await asyncio.to_thread(wait_gone, [pid])
