"""A gateway with something to show on each page of the dashboard, and a browser to look at it with."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from fleets import samples
from gateways import Gateway, chat_body
from measurements import record, run
from playwright.sync_api import Browser, Page, sync_playwright
from replies import GOOD, pairs

from measure.quality.regression import Reference, verdict_of
from measure.quality.verdict import judge
from measure.records import Kind, Record
from measure.soak_verdict import SoakVerdict
from measure.verdicts import Judged
from policies.types import Deployment, Quality

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
LIMIT_MS = 20_000
Open = Callable[..., Page]
NOISE = (0.97, 0.99, 1.0, 1.01, 1.04)


@contextmanager
def started_browser() -> Iterator[Browser]:
    """A headless Chromium of this machine. Skips the test where there is none."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"NO BROWSER: none of {', '.join(BROWSERS)} is installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visitor(browser: Browser) -> Iterator[Open]:
    """Opens pages: ``visit(gateway, "#/now")``. At the end none may have complained, or loaded anything from elsewhere.

    A browser says itself when an answer was a refusal: ``refusals`` are the statuses that a test is about.
    """
    opened: list[tuple[Page, list[str], tuple[int, ...]]] = []

    def visit(gateway: Gateway, path: str = "#/now", refusals: tuple[int, ...] = (), **context: Any) -> Page:
        page = browser.new_context(viewport={"width": 1280, "height": 800}, **context).new_page()
        page.set_default_timeout(LIMIT_MS)
        opened.append((page, _complaints(page, gateway.url), refusals))
        page.goto(f"{gateway.url}/ui/{path}")
        return page

    yield visit
    for page, complaints, refusals in opened:
        page.context.close()
        allowed = [f"responded with a status of {status} " for status in refusals]
        assert [said for said in complaints if not any(part in said for part in allowed)] == []


def _complaints(page: Page, origin: str) -> list[str]:
    """What a page complains about from now on, and what it loads from elsewhere."""
    complaints: list[str] = []

    def look(url: str) -> None:
        if not url.startswith((origin, "data:")):
            complaints.append(f"loads {url}")

    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: look(request.url))
    return complaints


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong with a page for those who do not see it, or see it badly."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"]]


def measured(gateway: Gateway) -> None:
    """Give each deployment a measurement, so that requests are predicted."""
    for deployment in gateway.house.fleet.deployments:
        gateway.call(gateway.house.fleet.learned.measured, deployment, samples(400.0, 50.0))


def fill(gateway: Gateway) -> None:
    """Put records of a benchmark, a regression and a soak into its store: the second deployment is twice as fast, and
    its quality is lost."""
    best, fast = gateway.house.fleet.deployments
    store = gateway.house.store
    gateway.run(store.add(*_records(best, 1.0), *_records(fast, 0.5)))
    lost = pairs((30, GOOD, GOOD), (20, GOOD, "the ferry " * 40))
    reference = Reference(best, "3", (), {}, force_calls=False)
    quality, why = judge(lost, 0)
    assert quality is Quality.FAILED
    verdict = verdict_of(fast, reference, quality, why, lost, 0)
    gateway.run(store.save_verdict(Judged.QUALITY, best.fingerprint, reference.examined.verdict.to_dict()))
    gateway.run(store.save_verdict(Judged.QUALITY, fast.fingerprint, verdict.to_dict()))
    soaked = SoakVerdict(stable=True, conclusive=True, reasons=(), requests=50, planned=50, repeated=8, same=8)
    gateway.run(store.save_verdict(Judged.STABILITY, best.fingerprint, soaked.to_dict()))
    assert gateway.house.verdicts is not None
    gateway.run(gateway.house.verdicts.look())


def _records(of: Deployment, factor: float) -> list[Record]:
    return [
        record(
            *(run(prompt, factor * prompt / 900 * each * at_once, decode_s=0.5 * factor * each) for each in NOISE),
            of=of,
            kind=Kind.GRID,
            asked_tokens=prompt,
            concurrency=at_once,
            peak_memory_bytes=int(3e8 * factor),
        )
        for prompt, at_once in ((16, 1), (64, 1), (256, 1), (256, 2), (256, 4))
    ]


def ask(gateway: Gateway, text: str = "hi", headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    """Send one chat request."""
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=chat_body(text, **more), headers=headers, timeout=20)
