"""The dashboard in a real browser: each page with real data, by sight, by keyboard and by an accessibility checker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from dashboards import LIMIT_MS, Open, ask, fill, measured, started_browser, violations, visitor
from engines.scripted import ScriptedEngine
from engines.scripts import chat, status, whole
from gateways import Gateway, engine_at
from playwright.sync_api import Browser, Page, expect

PAGES = ("now", "requests", "benchmarks", "quality", "experiments", "cache", "playground")
TITLES = {"quality": "Precision and quality"}
PROPS = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2, "build_info": "b11549"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with two deployments, that has measured, judged and served something."""
    with ScriptedEngine(kind="llamacpp") as best, ScriptedEngine(kind="llamacpp") as fast:
        for engine, precision in ((best, "F16"), (fast, "Q4_0")):
            engine.routes["GET /props"] = whole({**PROPS, "model_ftype": precision, "model_path": f"{precision}.gguf"})
        engines = [engine_at(best, "best"), engine_at(fast, "fast")]
        gateway = Gateway(tmp_path_factory.mktemp("shown"), engines=engines, cache={"mode": "auto"})
        measured(gateway)
        fill(gateway)
        for text in ("one", "two", "two"):
            ask(gateway, text)
        ask(gateway, "three", {"x-paceline-deployment": "fast"}, stream=True)
        ask(gateway, "four", model="nobody")
        yield gateway
        gateway.stop()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    with visitor(browser) as visit:
        yield visit


def has_loaded(page: Page, name: str) -> None:
    """Wait until a page shows what it was opened for."""
    expect(page).to_have_title(re.compile(TITLES.get(name, name.capitalize())))
    expect(page.locator("#connection")).to_have_text("live", timeout=LIMIT_MS)
    expect(page.get_by_text(re.compile("Reading|Connecting"))).to_have_count(0, timeout=LIMIT_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_accessible_and_complains_of_nothing(shown: Gateway, visit: Open, name: str, scheme: str) -> None:
    page = visit(shown, f"#/{name}", color_scheme=scheme)
    has_loaded(page, name)
    assert violations(page) == []


@pytest.mark.parametrize("name", PAGES)
def test_each_page_fits_a_phone(shown: Gateway, visit: Open, name: str) -> None:
    page = visit(shown, f"#/{name}")
    page.set_viewport_size({"width": 360, "height": 740})
    has_loaded(page, name)
    assert page.evaluate("() => document.scrollingElement.scrollWidth") <= 360
    assert violations(page) == []


def test_now_shows_what_ended_where_it_went_and_why(shown: Gateway, visit: Open) -> None:
    page = visit(shown)
    table = page.get_by_role("region", name="Last decisions")
    expect(table.get_by_role("row").filter(has_text=re.compile("from the cache|shared with"))).to_have_count(1)
    refused = table.get_by_role("row").filter(has_text="refused")
    expect(refused).to_contain_text("The model 'nobody' does not exist")
    deployments = page.get_by_role("region", name="Deployments")
    for name in ("best", "fast"):
        expect(deployments.get_by_role("row").filter(has_text=name)).to_contain_text("up")
    reply = ask(shown, "and one more", {"x-paceline-deployment": "fast"}, stream=True)
    newest = table.get_by_role("row").nth(1)
    expect(newest).to_contain_text(reply.headers["x-paceline-reason"], timeout=LIMIT_MS)
    expect(newest).to_contain_text("fast")
    expect(newest).to_contain_text("predicted")


def test_a_request_is_found_and_its_stages_and_its_why_are_shown(shown: Gateway, visit: Open) -> None:
    headers = {"x-request-id": "look-at-me", "x-paceline-deployment": "fast", "x-paceline-stage": "retrieval=0.8"}
    ask(shown, "a question", headers, stream=True)
    page = visit(shown, "#/requests")
    page.get_by_role("searchbox").fill("look-at-me")
    expect(page.get_by_role("heading", name=re.compile("1 of"))).to_be_visible()
    page.get_by_role("link", name="look-at-me").click()
    expect(page.locator(".why")).not_to_be_empty()
    stages = page.get_by_role("region", name="Where its time went")
    expect(stages.get_by_role("row").filter(has_text="retrieval")).to_contain_text("800 ms")
    expect(stages.get_by_role("row").filter(has_text="Prefill")).to_be_visible()
    expect(page.get_by_role("region", name="The request", exact=True)).to_contain_text("fast")
    assert violations(page) == []


def test_an_experiment_shows_its_arms_and_what_may_be_said_by_now(shown: Gateway, visit: Open) -> None:
    arms = [{"name": "exact", "deployments": ["best"]}, {"name": "small", "deployments": ["fast"]}]
    begun = httpx.post(f"{shown.url}/admin/experiments", json={"name": "sizes", "model": "m", "arms": arms})
    assert begun.status_code == httpx.codes.OK, begun.text
    try:
        for number in range(6):
            ask(shown, f"question {number}")
        page = visit(shown, "#/experiments")
        region = page.get_by_role("region", name=re.compile("sizes"))
        expect(region).to_contain_text("runs")
        for arm in ("exact", "small"):
            expect(region.get_by_role("row").filter(has_text=arm).first).to_contain_text("50 %")
        expect(region).to_contain_text("nothing shown yet")
        assert violations(page) == []
    finally:
        httpx.delete(f"{shown.url}/admin/experiments/sizes")


def test_an_experiment_is_begun_ramped_and_stopped_on_the_page(shown: Gateway, visit: Open) -> None:
    page = visit(shown, "#/experiments")
    page.get_by_label("Name").fill("sizes-2")
    page.get_by_label("First arm").select_option("best")
    page.get_by_label("New arm", exact=True).select_option("fast")
    page.get_by_label("Share of the new arm", exact=True).select_option("5 %, then 25 and 50 %")
    page.get_by_role("button", name="Begin").click()
    region = page.get_by_role("region", name=re.compile("sizes-2"))
    expect(region).to_contain_text("5.0 % to the new arm, then 25 %")
    expect(region.get_by_role("row").filter(has_text="fast").first).to_contain_text("takes part")
    region.get_by_text("When fast is stopped by itself").click()
    expect(region.get_by_role("row").filter(has_text="100 points more").first).to_contain_text(
        re.compile(r"\d+ requests")
    )
    assert violations(page) == []
    region.get_by_role("button", name="Take the next step: 25 %").click()
    expect(region.get_by_role("status")).to_contain_text("25 % go to the new arm now.")
    region.get_by_label("Share of the new arm, %").fill("40")
    region.get_by_role("button", name="Set").click()
    expect(region).to_contain_text("40 % to the new arm")
    region.get_by_role("button", name="Stop…").click()
    expect(region).to_contain_text("runs")
    assert violations(page) == []
    region.get_by_role("button", name="Yes, stop it").click()
    expect(region).to_contain_text("stopped by command")
    assert httpx.get(f"{shown.url}/admin/experiments/sizes-2").json()["runs"] is False


def test_an_experiment_that_cannot_begin_says_why_on_the_page(shown: Gateway, visit: Open) -> None:
    page = visit(shown, "#/experiments", refusals=(400,))
    page.get_by_label("Name").fill("one-with-itself")
    page.get_by_label("New arm", exact=True).select_option("best")
    page.get_by_role("button", name="Begin").click()
    expect(page.get_by_role("region", name="Begin one").get_by_role("alert")).to_contain_text("arm")
    assert httpx.get(f"{shown.url}/admin/experiments/one-with-itself").status_code == httpx.codes.NOT_FOUND


def test_an_arm_that_its_guardrail_has_stopped_is_seen_with_the_reason(
    gateway: Callable[..., Gateway], scripted: Callable[..., ScriptedEngine], visit: Open
) -> None:
    good, bad = scripted(kind="vllm"), scripted(kind="vllm")
    bad.always(status(500))
    running = gateway(engines=[engine_at(good, "good"), engine_at(bad, "bad")])
    arms = [{"name": "usual", "deployments": ["good"]}, {"name": "new", "deployments": ["bad"]}]
    httpx.post(f"{running.url}/admin/experiments", json={"name": "e", "model": "m", "arms": arms})
    page = visit(running, "#/experiments")
    region = page.get_by_role("region", name=re.compile("^e "))
    expect(region.get_by_role("row").filter(has_text="new").first).to_contain_text("takes part")
    for number in range(60):
        ask(running, f"question {number}")
    row = region.get_by_role("row").filter(has_text="new").first
    expect(row).to_contain_text("stopped by its guardrail on errors", timeout=LIMIT_MS)
    expect(row).to_contain_text(
        re.compile(r"\d+ errors in \d+ requests, 0 in \d+ of the first arm; after \d+ requests")
    )
    expect(region).to_contain_text("over")
    assert violations(page) == []


def test_no_foreign_page_begins_or_stops_an_experiment(
    shown: Gateway, scripted: Callable[..., ScriptedEngine], browser: Browser
) -> None:
    arms = [{"name": "a", "deployments": ["best"]}, {"name": "b", "deployments": ["fast"]}]
    body = {"name": "kept", "model": "m", "arms": arms}
    assert httpx.post(f"{shown.url}/admin/experiments", json=body).status_code == httpx.codes.OK
    page = browser.new_page()
    page.goto(f"{scripted(kind='vllm').url}/v1/models")  # on this machine too: the browser itself keeps out others
    try:
        page.evaluate(
            """async ([url, body]) => {
                const send = (path, options) => fetch(url + path, options).catch(() => {});
                const plain = { method: "POST", mode: "no-cors", body: JSON.stringify({ ...body, name: "sneaked" }) };
                await send("/admin/experiments", plain);
                const headers = { "content-type": "application/json" };
                await send("/admin/experiments", { ...plain, mode: "cors", headers });
                await send("/admin/experiments/kept", { method: "DELETE" });
                await send("/admin/experiments/kept", { method: "PATCH", body: "{}" });
            }""",
            [shown.url, body],
        )
        known = httpx.get(f"{shown.url}/admin/experiments").json()["experiments"]
        assert [(each["name"], each["runs"], each["share"]) for each in known if each["runs"]] == [("kept", True, 0.5)]
    finally:
        page.close()
        httpx.delete(f"{shown.url}/admin/experiments/kept")


def test_now_says_what_to_do_where_there_is_no_engine(gateway: Callable[..., Gateway], visit: Open) -> None:
    page = visit(gateway(engines=[], discovery={"enabled": False}))
    expect(page.get_by_text("No engine is known.")).to_be_visible()
    expect(page.get_by_text("paceline doctor")).to_be_visible()
    expect(page.get_by_text("No request yet.")).to_be_visible()


def test_an_engine_that_dies_is_seen_without_reloading(
    gateway: Callable[..., Gateway], scripted: Callable[..., ScriptedEngine], visit: Open
) -> None:
    engine = scripted(kind="vllm")
    running = gateway(engines=[engine_at(engine, "a")])
    page = visit(running)
    row = page.get_by_role("region", name="Deployments").get_by_role("row").filter(has_text="a")
    expect(row.last).to_contain_text("unmeasured")
    engine.stop()
    assert ask(running).status_code == httpx.codes.SERVICE_UNAVAILABLE
    expect(page.get_by_role("region", name="Deployments")).to_contain_text("down", timeout=LIMIT_MS)
    expect(page.get_by_role("region", name="Last decisions")).to_contain_text("failed")


def test_benchmarks_have_records_curves_and_a_comparison(shown: Gateway, visit: Open) -> None:
    page = visit(shown, "#/benchmarks")
    expect(page.get_by_role("region", name="Table of records").get_by_role("row")).to_have_count(11)
    expect(page.get_by_role("img", name=re.compile("Time to first token"))).to_be_visible()
    expect(page.locator(".plot canvas")).to_have_count(2)
    page.get_by_label("A: deployment").fill("best")
    page.get_by_label("B: another").fill("fast")
    page.get_by_role("button", name="Compare").click()
    compared = page.locator("[data-part=compared]")
    expect(compared).to_contain_text("precision")
    expect(compared.get_by_role("row").filter(has_text="TTFT").first).to_contain_text("B faster by")
    assert violations(page) == []


def test_what_cannot_be_compared_or_selected_is_said_with_a_way_out(shown: Gateway, visit: Open) -> None:
    page = visit(shown, "#/benchmarks", refusals=(400,))
    page.get_by_label("A: deployment").fill("best,concurrency=1")
    page.get_by_label("B: another").fill("fast,concurrency=2")
    page.get_by_role("button", name="Compare").click()
    compared = page.locator("[data-part=compared]")
    expect(compared.get_by_role("alert")).to_contain_text("2 variables differ")
    expect(compared.get_by_role("row").filter(has_text="concurrency")).to_be_visible()
    page.get_by_role("searchbox", name="Selection").fill("engin=vllm")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("alert").first).to_contain_text("Did you mean engine")


def test_quality_shows_verdicts_with_their_measures_and_the_worst_pairs(shown: Gateway, visit: Open) -> None:
    page = visit(shown, "#/quality")
    rows = page.get_by_role("row")
    expect(rows.filter(has_text="best").first).to_contain_text("baseline")
    expect(rows.filter(has_text="best").first).to_contain_text("stable")
    expect(rows.filter(has_text="fast").first).to_contain_text("failed")
    expect(rows.filter(has_text="answers that became loops").last).to_contain_text("failed")
    page.get_by_text("became a loop").first.click()
    expect(page.locator("mark").nth(1)).to_contain_text("the ferry the ferry")
    assert violations(page) == []


def test_the_cache_is_shown_looked_into_and_emptied(
    gateway: Callable[..., Gateway], scripted: Callable[..., ScriptedEngine], visit: Open
) -> None:
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], cache={"mode": "auto"})
    key = [ask(running) for _ in range(4)][-1].headers["x-paceline-cache-key"]
    page = visit(running, "#/cache")
    expect(page.get_by_role("region", name="Summary")).to_contain_text("75 %")
    page.get_by_label("Beginning of its key").fill(key)
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_label("Kept answer")).to_contain_text("Hel")
    assert violations(page) == []
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Yes, delete them").click()
    expect(page.get_by_role("region", name="Empty it")).to_contain_text("1 entry deleted.")
    assert ask(running).headers["x-paceline-cache"] == "miss"


def test_a_cache_that_is_off_says_how_it_is_switched_on(
    gateway: Callable[..., Gateway], scripted: Callable[..., ScriptedEngine], visit: Open
) -> None:
    page = visit(gateway(engines=[engine_at(scripted(kind="vllm"), "a")]), "#/cache")
    expect(page.get_by_text("The cache is off.")).to_be_visible()
    expect(page.get_by_text("cache.mode")).to_be_visible()


@pytest.mark.parametrize("order", ["all at once", "one after another"])
def test_the_playground_asks_each_deployment_and_says_how_long_it_took(shown: Gateway, visit: Open, order: str) -> None:
    page = visit(shown, "#/playground")
    page.get_by_label("Prompt").fill("Say hello.")
    page.get_by_label(order).check()
    page.get_by_role("button", name="Send to 2 deployments").click()
    for name in ("best", "fast"):
        answer = page.get_by_role("article", name=name, exact=True)
        expect(answer).to_contain_text("done")
        expect(answer.get_by_label(f"Answer of {name}")).to_have_text("Hello!")
        expect(answer).to_contain_text(re.compile(r"TTFT\s*[\d.]+ m?s\s*predicted"))
    assert violations(page) == []


def test_the_playground_says_in_words_why_a_deployment_did_not_answer(
    gateway: Callable[..., Gateway], scripted: Callable[..., ScriptedEngine], visit: Open
) -> None:
    good, bad = scripted(kind="vllm"), scripted(kind="vllm")
    good.always(chat(["fine"]))
    bad.always(status(500))
    page = visit(gateway(engines=[engine_at(good, "good"), engine_at(bad, "bad")]), "#/playground", refusals=(502,))
    page.get_by_role("button", name="Send to 2 deployments").click()
    expect(page.get_by_role("article", name="good")).to_contain_text("fine")
    expect(page.get_by_role("article", name="bad")).to_contain_text("refused with 500")


@pytest.mark.llamacpp
def test_the_playground_streams_from_a_real_llamacpp(
    gateway: Callable[..., Gateway], llamacpp: Any, visit: Open
) -> None:
    running = gateway(engines=[{"name": "real", "url": llamacpp.url}])
    page = visit(running, "#/playground")
    page.get_by_label("Most tokens").fill("8")
    page.get_by_role("button", name="Send to one deployment").click()
    answer = page.get_by_role("article", name="real")
    expect(answer).to_contain_text("done", timeout=120_000)
    expect(answer).to_contain_text(re.compile(r"Decode\s*[\d.]+ tok/s"))
    expect(answer.get_by_label("Answer of real")).not_to_be_empty()
