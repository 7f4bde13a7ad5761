"""What the engine's clients are told when something goes wrong: real HTTP, a runner that fails as a test wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from asking import CONTEXT, events, language

from engine.block_manager import BlockManager
from engine.detokenizer import Detokenizer
from engine.engine import Engine
from engine.errors import BrokenModel, EngineError, OutOfMemory, Poisoned
from engine.events import Delta, Failed, Listener
from engine.request import Plan, Result, Sequence
from engine.scheduler import Limits, Scheduler
from engine.server import Served, Server, Service

LIMIT_S = 20.0
BODY: dict[str, Any] = {"prompt": "ab", "max_tokens": 4, "temperature": 0}


@dataclass
class Pending:
    result: Callable[[], list[Result]]


@dataclass
class Runner:
    """Says "x" at every step that it may make; ``error`` is what each request gets instead, ``raises`` the step."""

    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    error: EngineError | None = None
    raises: EngineError | None = None
    spoken: Any = field(default_factory=language)

    def start(self, plan: Plan) -> Pending:
        return Pending(lambda: self._results(plan))

    def run(self) -> None:
        self.steps.release(10_000)

    def close(self) -> None:
        pass

    def _results(self, plan: Plan) -> list[Result]:
        assert self.steps.acquire(timeout=LIMIT_S)
        if self.raises is not None:
            raise self.raises
        (token,) = self.spoken.tokenizer.encode("x")
        return [
            Result(row.sequence, error=self.error)
            if self.error is not None
            else Result(row.sequence, (token,) if row.samples else ())
            for row in plan.rows
        ]


@dataclass
class Place:
    """A server in a thread of its own. ``load`` lets the model be there."""

    runner: Runner
    server: Server
    thread: threading.Thread
    load: threading.Event

    def url(self, path: str) -> str:
        host, port = self.server.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}{path}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url(path), timeout=LIMIT_S)

    def post(self, body: dict[str, Any], path: str = "/v1/completions") -> httpx.Response:
        return httpx.post(self.url(path), json=body, timeout=LIMIT_S)


@contextmanager
def serving(*, queue: int = 8, step_limit_s: float = 60.0, loads: bool = True, fails: bool = False) -> Iterator[Place]:
    runner, load, listening = Runner(), threading.Event(), threading.Event()
    if loads:
        load.set()

    def open_model(progress: Callable[[float], None]) -> Served:
        listening.set()
        progress(0.25)
        assert load.wait(LIMIT_S)
        if fails:
            raise BrokenModel("weights.bin lacks a tensor")
        scheduler = Scheduler(BlockManager(64, 16), Limits(2, 64, CONTEXT))
        spoken = runner.spoken
        engine = Engine(
            runner,
            scheduler,
            lambda sequence: Detokenizer(spoken.tokenizer),
            queue=queue,
            step_limit_s=step_limit_s,
            on_broken=lambda: place.server.end(),
        )
        return Served("small", {"id": "small"}, "small", spoken, engine)

    service = Service(open_model)
    server = Server(service, "127.0.0.1", 0)
    place = Place(runner, server, threading.Thread(target=server.run), load)
    place.thread.start()
    try:
        assert listening.wait(LIMIT_S)
        if loads and not fails:
            server.loading.join(LIMIT_S)
        yield place
    finally:
        load.set()
        runner.run()
        server.end()
        place.thread.join(LIMIT_S)
        assert not place.thread.is_alive()


def test_while_the_model_loads_everything_says_so_and_how_far_it_is() -> None:
    with serving(loads=False) as place:
        ready = place.get("/ready")
        assert (ready.status_code, ready.json()["progress"]) == (503, 0.25)
        assert place.get("/health").json() == {"status": "loading"}
        assert place.get("/metrics").status_code == 200
        refused = place.post(BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
        place.load.set()
        place.server.loading.join(LIMIT_S)
        assert place.get("/ready").json()["status"] == "ready"
        place.runner.run()
        assert place.post(BODY).json()["choices"][0]["text"] == "xxxx"


def test_a_model_that_cannot_be_loaded_ends_the_server_and_says_why() -> None:
    with serving(fails=True) as place:
        place.thread.join(LIMIT_S)
        assert not place.thread.is_alive()
        failure = place.server.service.failure
    assert failure is not None
    assert failure.message == "weights.bin lacks a tensor"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_before_its_first_token_fails_alone_with_a_status(stream: bool) -> None:
    with serving() as place:
        place.runner.run()
        place.runner.error = Poisoned("its numbers are not finite")
        answer = place.post({**BODY, "stream": stream})
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "its numbers are not finite")
        place.runner.error = None
        assert place.post(BODY).status_code == 200


def test_a_stream_that_fails_on_its_way_ends_with_the_error_and_without_done() -> None:
    with serving() as place, httpx.Client(timeout=LIMIT_S) as client:
        place.runner.steps.release()
        with client.stream("POST", place.url("/v1/completions"), json={**BODY, "stream": True}) as answer:
            pieces = answer.iter_bytes()
            first = next(pieces)
            place.runner.error = Poisoned("its numbers are not finite")
            place.runner.run()
            told = events(first + b"".join(pieces))
    assert answer.status_code == 200
    assert told[0]["choices"][0]["text"] == "x"
    assert told[-1]["error"]["message"] == "its numbers are not finite"
    assert "[DONE]" not in told


def test_tokens_that_come_together_with_a_failure_are_sent_before_it() -> None:
    def submit(sequence: Sequence, listener: Listener) -> None:
        listener(Delta("x", (1,), ()))
        listener(Failed(Poisoned("its numbers are not finite")))

    with serving() as place:
        served = place.server.service.served
        assert served is not None
        served.engine.submit = submit  # type: ignore[method-assign]
        told = events(place.post({**BODY, "stream": True}).content)
        assert told[0]["choices"][0]["text"] == "x"
        assert told[-1]["error"]["message"] == "its numbers are not finite"
        assert place.post(BODY).status_code == 500


def test_a_request_that_does_not_fit_in_memory_even_alone_is_told_so() -> None:
    with serving() as place:
        place.runner.run()
        place.runner.raises = OutOfMemory("no memory")
        answer = place.post(BODY)
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "no memory")
        place.runner.raises = None
        assert place.post(BODY).status_code == 200


def test_more_requests_than_may_wait_are_refused_at_once() -> None:
    with serving(queue=1) as place:
        refused = place.post({**BODY, "n": 4})
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "overloaded_error")
        place.runner.run()
        assert place.post({**BODY, "n": 3}).status_code == 200


def test_a_step_that_hangs_is_told_to_its_client_and_ends_the_server() -> None:
    with serving(step_limit_s=0.2) as place:
        answer = place.post(BODY)
        assert answer.status_code == 503
        place.thread.join(LIMIT_S)
        assert not place.thread.is_alive()
        served = place.server.service.served
        assert served is not None
        assert not served.engine.healthy


def test_a_path_or_a_body_that_is_none_is_refused_in_openais_form() -> None:
    with serving() as place:
        assert place.get("/nowhere").json()["error"]["type"] == "invalid_request_error"
        assert place.get("/v1/completions").status_code == 405
        assert httpx.post(place.url("/v1/completions"), content=b"[]").status_code == 400
        assert place.post({**BODY, "model": "other"}).json()["error"]["code"] == "model_not_found"
