"""What the dashboard is made of, as its server gives it out: files, the feed, records, verdicts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from dashboards import ask, fill
from engines.scripted import ScriptedEngine
from engines.scripts import chat, whole
from engines.signals import Gate
from gateways import LIMIT_S, Gateway, chat_body, engine_at

from gateway.pages import build_pages
from gateway.requests.recent import MOST
from gateway.ui.feed import MOST_LISTENERS
from gateway.ui.static_files import FOLDER

Start = Callable[..., Gateway]
Scripted = Callable[..., ScriptedEngine]
ADMIN, USER = "an-admin-key-for-tests", "a-user's-key-for-tests"
VENDOR = FOLDER / "vendor"


@pytest.fixture
def plain(gateway: Start, scripted: Scripted) -> Gateway:
    return gateway(engines=[engine_at(scripted(kind="vllm"), "a")])


@pytest.fixture
def two(gateway: Start, scripted: Scripted) -> Gateway:
    """Two precisions of one model, with records and verdicts."""
    engines = []
    for precision in ("F16", "Q4_0"):
        engine = scripted(kind="llamacpp")
        props = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2, "build_info": "b11549"}
        engine.routes["GET /props"] = whole({**props, "model_ftype": precision, "model_path": f"{precision}.gguf"})
        engines.append(engine)
    running = gateway(engines=[engine_at(engines[0], "best"), engine_at(engines[1], "fast")])
    fill(running)
    return running


@asynccontextmanager
async def listening(client: httpx.AsyncClient) -> AsyncIterator[AsyncIterator[Any]]:
    """The feed's events, one after the other."""
    async with client.stream("GET", "/admin/live") as answer:
        assert answer.status_code == httpx.codes.OK, await answer.aread()

        async def events() -> AsyncIterator[Any]:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

        yield events()


async def test_nothing_but_its_own_files_may_run_on_the_page(plain: Gateway) -> None:
    async with plain.client() as client:
        page = await client.get("/ui/")
        script = await client.get("/ui/app.js")
        away = await client.get("/ui")
        unknown = await client.get("/ui/../house.py")
    policy = page.headers["content-security-policy"]
    for part in (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"),
        *("frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"),
    ):
        assert part in policy
    assert "unsafe" not in policy
    assert (page.headers["x-content-type-options"], page.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert "<script>" not in page.text
    assert " style=" not in page.text
    assert script.headers["content-type"].startswith("text/javascript")
    assert (away.status_code, away.headers["location"]) == (307, "ui/")
    assert unknown.status_code == 404


async def test_a_file_that_has_not_changed_is_not_sent_again(plain: Gateway) -> None:
    async with plain.client() as client:
        first = await client.get("/ui/ui.css")
        again = await client.get("/ui/ui.css", headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_vendored_libraries_are_as_published_at_their_pinned_version_with_their_licence() -> None:
    listed = json.loads((VENDOR / "versions.json").read_text())
    there = {path.name for path in VENDOR.iterdir() if path.is_dir()}
    assert set(listed) == there
    for name, package in listed.items():
        found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (VENDOR / name).iterdir()}
        assert found == package["files"], name
        assert "LICENSE" in found
        assert package["version"]


@pytest.mark.parametrize("path", ["live", "records", "compare?a=x&b=y", "verdicts"])
async def test_only_an_admin_may_look(
    gateway: Start, scripted: Scripted, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("ADMIN_KEY", ADMIN)
    monkeypatch.setenv("USER_KEY", USER)
    keys = [{"name": "ops", "env": "ADMIN_KEY", "admin": True}, {"name": "app", "env": "USER_KEY"}]
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], auth={"keys": keys})
    async with running.client() as client:
        nobody = await client.get(f"/admin/{path}")
        user = await client.get(f"/admin/{path}", headers={"authorization": f"Bearer {USER}"})
        shell = await client.get("/ui/")
    assert (nobody.status_code, user.status_code) == (401, 403)
    assert (shell.status_code, 'data-keys="on"' in shell.text) == (200, True)


async def test_the_feed_tells_each_request_once_with_what_was_predicted_and_never_its_text(
    two: Gateway,
) -> None:
    async with two.client() as client, listening(client) as events:
        assert (await anext(events))["requests"] == []
        body = chat_body("a secret of mine", stream=True)
        await client.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine"})
        await client.post("/v1/chat/completions", json={**body, "model": "nobody"})
        seen: list[dict[str, Any]] = []
        async with asyncio.timeout(LIMIT_S):
            while len(seen) < 2:
                event = await anext(events)
                seen += event["requests"]
    served, refused = seen
    assert (served["id"], served["ended"], served["attempts"], served["number"]) == ("mine", "done", 1, 1)
    assert served["deployment"] in ("best", "fast")
    assert served["reason"]
    assert served["ttft_s"] <= served["total_s"]
    assert (refused["ended"], refused.get("deployment")) == ("refused", None)
    assert "nobody" in refused["error"]
    assert "secret" not in json.dumps(seen)
    assert event["state"]["finished"] == 2


async def test_requests_that_ended_before_the_dashboard_was_imported_are_told_too(
    gateway: Start, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_import = threading.Event()

    def import_later(house: Any) -> Any:
        assert may_import.wait(LIMIT_S)
        return build_pages(house)

    monkeypatch.setattr("gateway.app._import_pages", import_later)
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")])
    async with running.client() as client:
        early = await client.post("/v1/chat/completions", json=chat_body())
        may_import.set()
        async with listening(client) as events:
            event = await anext(events)
    assert [each["id"] for each in event["requests"]] == [early.headers["x-request-id"]]


async def test_what_watches_in_a_browser_and_in_a_terminal_say_the_same(two: Gateway) -> None:
    async with two.client() as client:
        for name in ("best", "fast", "fast"):
            body = chat_body(stream=True)
            await client.post("/v1/chat/completions", json=body, headers={"x-paceline-deployment": name})
        async with listening(client) as events:
            told = await anext(events)
        now = (await client.get("/admin/now")).json()
    alike = ("running", "places", "waiting", "queue", "cache")
    assert {name: now[name] for name in alike} == {name: told["state"][name] for name in alike}
    ended = [each["deployment"] for each in told["requests"]]
    assert {each["id"]: each["requests"] for each in now["deployments"]} == {
        id_: ended.count(id_) for id_ in set(ended)
    }
    ttfts = [each["ttft_s"] for each in told["requests"] if each["deployment"] == "fast"]
    fast = next(each for each in now["deployments"] if each["id"] == "fast")
    assert fast["ttft_s"] == pytest.approx(sum(ttfts) / 2, abs=0.001)


async def test_a_request_in_flight_is_counted_while_it_runs(gateway: Start, scripted: Scripted) -> None:
    engine, gate = scripted(kind="vllm"), Gate()
    engine.always(chat(gate=gate))
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client, listening(client) as events:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=chat_body()))
        async with asyncio.timeout(LIMIT_S):
            while not (event := await anext(events))["state"]["running"]:
                pass
            assert event["state"]["deployments"][0]["inflight"] == 1
            gate.open()
            assert (await call).status_code == httpx.codes.OK
            while (await anext(events))["state"]["running"]:
                pass


async def test_more_dashboards_than_there_is_room_for_are_refused_until_one_closes(plain: Gateway) -> None:
    limits = httpx.Limits(max_connections=MOST_LISTENERS + 5)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(plain.client(limits=limits))
        first = AsyncExitStack()
        open_ = [await first.enter_async_context(listening(client))]
        open_ += [await stack.enter_async_context(listening(client)) for _ in range(MOST_LISTENERS - 1)]
        for events in open_:
            await anext(events)
        refused = await client.get("/admin/live")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_dashboards")
        assert refused.headers["retry-after"]
        await first.aclose()
        async with asyncio.timeout(LIMIT_S):
            while True:
                async with client.stream("GET", "/admin/live") as answer:
                    if answer.status_code == httpx.codes.OK:
                        break


async def test_what_is_remembered_has_a_bound(plain: Gateway) -> None:
    async with plain.client() as client:
        for number in range(MOST + 30):
            await client.post("/v1/chat/completions", json={"model": f"nobody-{number}", "messages": []})
            await client.post("/v1/chat/completions", json=chat_body(model=f"nobody-{number}"))
        async with listening(client) as events:
            event = await anext(events)
    numbers = [each["number"] for each in event["requests"]]
    assert len(numbers) == MOST == event["most"]
    assert numbers == list(range(event["state"]["finished"] - MOST + 1, event["state"]["finished"] + 1))


async def test_an_open_dashboard_holds_up_no_stop(gateway: Start, scripted: Scripted) -> None:
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], server={"graceful_stop_s": 600.0})
    async with running.client() as client, listening(client) as events:
        await anext(events)
        running.begin_stop()
        async with asyncio.timeout(LIMIT_S):
            async for _ in events:
                pass
    running.stop()


async def test_records_are_listed_by_selection_with_curves(two: Gateway) -> None:
    async with two.client() as client:
        every = (await client.get("/admin/records")).json()
        some = (await client.get("/admin/records", params={"select": "best,concurrency=1", "limit": 2})).json()
        wrong = await client.get("/admin/records", params={"select": "engin=vllm"})
    assert (every["known"], every["found"], len(every["records"])) == (10, 10, 10)
    assert [panel["title"] for panel in every["panels"]] == ["Time to first token", "Decode speed per request"]
    assert (some["found"], len(some["records"])) == (3, 2)
    assert {each["deployment"] for each in some["records"]} == {"best"}
    assert (wrong.status_code, "engine" in wrong.json()["error"]["fix"]) == (400, True)


async def test_two_selections_are_compared_or_refused_with_what_differs(two: Gateway) -> None:
    async with two.client() as client:
        made = (await client.get("/admin/compare", params={"a": "best", "b": "fast"})).json()
        refused = await client.get("/admin/compare", params={"a": "best,concurrency=1", "b": "fast,concurrency=2"})
        query = {"a": "best,concurrency=1,prompt=256", "b": "fast,concurrency=2", "allow": "concurrency"}
        allowed = await client.get("/admin/compare", params=query)
    assert [each["name"] for each in made["differs"]] == ["precision"]
    assert next(each for each in made["overall"] if each["metric"] == "TTFT")["verdict"].startswith("B faster by")
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "not_comparable")
    assert {each["name"] for each in error["differs"]} >= {"precision", "concurrency"}
    assert allowed.status_code == httpx.codes.OK


async def test_verdicts_come_with_their_measures_in_words_and_the_worst_pairs(two: Gateway) -> None:
    async with two.client() as client:
        told = (await client.get("/admin/verdicts")).json()["deployments"]
    best, fast = sorted(told, key=lambda each: each["id"])
    assert (best["quality"], fast["quality"]) == ("baseline", "failed")
    assert best["soak"]["stable"] is True
    loops = next(each for each in fast["regression"]["measures"] if each["name"] == "loops")
    assert (loops["passed"], loops["limit"]) == (False, "at most 10.0%")
    worst = fast["regression"]["worst"]
    assert len(worst) == 6
    assert worst[0]["candidate"].startswith("the ferry the ferry")
    assert "became a loop" in worst[0]["remarks"]


def test_an_answer_from_the_cache_is_told_with_who_wrote_it(gateway: Start, scripted: Scripted) -> None:
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], cache={"mode": "auto"})
    for _ in range(2):
        ask(running)

    async def look() -> Any:
        async with running.client() as client, listening(client) as events:
            return await anext(events)

    event = asyncio.run(look())
    assert [(each["cache"], each.get("attempts", 0), each["deployment"]) for each in event["requests"]] == [
        ("miss", 1, "a"),
        ("hit", 0, "a"),
    ]
    assert event["state"]["cache"]["hits"] == 1
