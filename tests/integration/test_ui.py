"""The dashboard in a real browser: each page with real data, by sight, by keyboard and by an accessibility checker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from dashboards import LIMIT_MS, Console, ask, fill, measured, started_browser
from engines.scripted import ScriptedEngine
from engines.scripts import chat, status, whole
from gateways import Gateway, engine_at
from playwright.sync_api import Browser, Page, expect

Open = Callable[..., Page]

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
    """Opens pages of a gateway; at the end none of them may have complained, or loaded anything from elsewhere."""
    opened: list[tuple[Page, Console]] = []

    def start(gateway: Gateway, path: str = "#/now", **context: Any) -> Page:
        page = browser.new_context(viewport={"width": 1280, "height": 800}, **context).new_page()
        page.set_default_timeout(LIMIT_MS)
        opened.append((page, Console(page, gateway.url)))
        page.goto(f"{gateway.url}/ui/{path}")
        return page

    yield start
    for page, console in opened:
        page.context.close()
        assert console.complaints == []


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"]]


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
