"""Around the dashboard's pages: who comes in, the keyboard, light and dark, and that it does not grow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dashboards import LIMIT_MS, Open, started_browser, violations, visitor
from engines.scripted import ScriptedEngine
from gateways import Gateway, engine_at
from playwright.sync_api import Browser, CDPSession, Page, Route, expect

Start = Callable[..., Gateway]
Scripted = Callable[..., ScriptedEngine]

ADMIN, USER = "an-admin-key-for-tests", "a-user's-key-for-tests"
MOST_REQUESTS = 400
"""What the feed keeps at most."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    with visitor(browser) as visit:
        yield visit


@pytest.fixture
def plain(gateway: Start, scripted: Scripted) -> Gateway:
    return gateway(engines=[engine_at(scripted(kind="vllm"), "a")])


@pytest.fixture
def locked(gateway: Start, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """A gateway with an admin's key and a user's."""
    monkeypatch.setenv("ADMIN_KEY", ADMIN)
    monkeypatch.setenv("USER_KEY", USER)
    keys = [{"name": "ops", "env": "ADMIN_KEY", "admin": True}, {"name": "app", "env": "USER_KEY"}]
    return gateway(engines=[engine_at(scripted(kind="vllm"), "a")], auth={"keys": keys})


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Admin key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_with_keys_nothing_is_shown_before_an_admin_has_signed_in(locked: Gateway, visit: Open) -> None:
    page = visit(locked, refusals=(401, 403))
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_be_visible()
    sign_in(page, "not-a-key-that-anybody-has")
    expect(dialog).to_contain_text("This key is not accepted")
    sign_in(page, USER)
    expect(dialog).to_contain_text("The key 'app' is not an admin key")
    expect(page.get_by_text("1 of 1 deployment can serve")).to_have_count(0)
    sign_in(page, ADMIN)
    expect(dialog).to_be_hidden()
    expect(page.get_by_text("1 of 1 deployment can serve")).to_be_visible()


def test_the_key_stays_in_its_tab_and_goes_with_signing_out(locked: Gateway, visit: Open) -> None:
    page = visit(locked)
    sign_in(page, ADMIN)
    expect(page.locator("#connection")).to_have_text("live")
    page.reload()
    expect(page.locator("#connection")).to_have_text("live")
    assert ADMIN not in page.content()
    assert ADMIN not in page.url
    assert page.evaluate("() => document.cookie + JSON.stringify(localStorage)").find(ADMIN) == -1
    other = page.context.new_page()
    other.goto(f"{locked.url}/ui/")
    expect(other.get_by_role("dialog")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("() => sessionStorage.length") == 0


def test_a_key_that_is_revoked_asks_for_another(gateway: Start, visit: Open, locked: Gateway) -> None:
    page = visit(locked, refusals=(401,))
    sign_in(page, ADMIN)
    expect(page.locator("#connection")).to_have_text("live")
    page.evaluate("() => sessionStorage.setItem('paceline-key', 'a-key-that-was-taken-away')")
    page.get_by_role("link", name="Benchmarks").click()
    expect(page.get_by_role("dialog")).to_contain_text("This key is not accepted")


def test_every_page_is_reached_and_used_by_keyboard_alone(plain: Gateway, visit: Open) -> None:
    page = visit(plain)
    expect(page.locator("#connection")).to_have_text("live")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.reload()
    seen = []
    for _ in range(20):
        page.keyboard.press("Tab")
        focused = page.evaluate("() => document.activeElement.textContent.trim()")
        seen.append(focused)
        if focused == "Playground":
            break
    assert seen[2:] == ["Now", "Requests", "Benchmarks", "Precision and quality", "Experiments", "Cache", "Playground"]
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_label("Prompt")).to_be_visible()
    page.get_by_label("Prompt").focus()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.type") == "submit":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="a")).to_contain_text("done")


def test_a_slash_goes_to_the_search(plain: Gateway, visit: Open) -> None:
    page = visit(plain, "#/benchmarks")
    search = page.get_by_role("searchbox")
    expect(search).to_be_visible()
    page.keyboard.press("/")
    expect(search).to_be_focused()


def test_light_and_dark_follow_the_system_until_one_is_chosen(plain: Gateway, visit: Open) -> None:
    page = visit(plain, color_scheme="dark")
    button = page.get_by_role("button", name="Theme")
    background = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    expect(button).to_have_text("Theme: system")
    button.click()
    expect(button).to_have_text("Theme: light")
    assert page.evaluate(background) != dark
    page.reload()
    expect(button).to_have_text("Theme: light")
    button.click()
    assert page.evaluate(background) == dark


def test_a_lost_connection_is_said_and_comes_back(gateway: Start, visit: Open, plain: Gateway) -> None:
    page = visit(plain)
    expect(page.locator("#connection")).to_have_text("live")
    page.route("**/admin/live", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=""))
    page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    page.reload()
    expect(page.locator("#connection")).to_have_text("connection lost")
    page.unroute("**/admin/live")
    expect(page.locator("#connection")).to_have_text("live")


def events(first: int, count: int) -> str:
    """So many seconds of a busy feed, with a request in each fifth of a second."""
    told = []
    for second in range(first, first + count):
        at = 1_700_000_000.0 + second
        requests = [
            {
                "number": number,
                "id": f"request-{number}",
                "at": at,
                "model": "m",
                "operation": "chat",
                "ended": "done",
                "total_s": 0.5 + number % 7 / 10,
                "deployment": f"d{number % 3}",
                "reason": "finishes first",
                "cache": "miss",
                "attempts": 1,
                "ttft_s": 0.1 + number % 5 / 10,
                "output_tokens": 20 + number % 9,
                "decode_per_s": 40.0 + number % 11,
            }
            for number in range(second * 5, second * 5 + 5)
        ]
        deployments = [
            {"id": f"d{place}", "model": "m", "engine_label": "vLLM", "precision": "bf16", "scheme": "", "state": "up"}
            | {"note": "", "slots": 4, "inflight": (second + place) % 5, "foreign": 0, "measured": None}
            for place in range(3)
        ]
        state: dict[str, Any] = {"at": at, "version": "0", "running": second % 9, "places": 512, "waiting": 0}
        state |= {"queue": 1024, "finished": second * 5, "measuring": None, "cache": None, "deployments": deployments}
        told.append(f"data: {json.dumps({'state': state, 'requests': requests, 'most': MOST_REQUESTS})}\n\n")
    return "".join(told)


def memory(session: CDPSession) -> dict[str, float]:
    """What is left after the garbage collector: bytes of the heap, nodes and listeners of the page."""
    session.send("HeapProfiler.collectGarbage")
    session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return {name: found[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")}


def test_a_page_that_has_seen_half_an_hour_is_no_bigger_than_after_five_minutes(plain: Gateway, visit: Open) -> None:
    page = visit(plain, "#/cache")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    seconds = 0

    def feed(route: Route) -> None:
        nonlocal seconds
        body = events(seconds, 310)
        seconds += 310
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/admin/live", feed)
    page.goto(f"{plain.url}/ui/#/now")
    page.reload()
    sizes = []
    for round_ in range(1, 7):
        last = f"{310 * 5 * round_ - 5:,} since the start"
        expect(page.get_by_text(last)).to_be_visible(timeout=6 * LIMIT_MS)
        sizes.append(memory(session))
    first, last_ = sizes[1], sizes[-1]  # by then all has been compiled that will be
    assert last_["Nodes"] <= first["Nodes"] * 1.05, sizes
    assert last_["JSEventListeners"] <= first["JSEventListeners"], sizes
    assert last_["JSHeapUsedSize"] <= first["JSHeapUsedSize"] * 1.2, sizes
