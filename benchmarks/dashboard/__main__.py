"""``python -m benchmarks.dashboard``: does an open dashboard grow under live traffic? In a real Chromium, for a minute.

A gateway answers steady traffic in front of an upstream that answers at once; one page shows Now. After a warm-up, in
which it fills what has a bound, the page's heap (after the garbage collector), nodes and listeners, and the gateway's
memory, are looked at every few seconds. It fails when the last third is bigger than the first by more than is allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import httpx
from playwright.sync_api import CDPSession, Page, sync_playwright
from rich.console import Console
from rich.table import Table

from benchmarks.overhead.processes import Running, gateway, upstreams
from benchmarks.overhead.targets import Site, Target, paceline_arguments
from benchmarks.overhead.upstream import MODEL
from scripts.lib.ending import end_when_terminated

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
EVERY_S: Final = 5.0
ALLOWED: Final = {"heap_mb": 1.2, "nodes": 1.05, "listeners": 1.0, "gateway_mb": 1.1}
"""How much bigger the last third may be than the first."""


@dataclass(frozen=True, slots=True)
class Size:
    """The page and the gateway ``at_s`` seconds after the warm-up; ``requests`` have ended by then."""

    at_s: float
    requests: int
    heap_mb: float
    nodes: int
    listeners: int
    gateway_mb: float


class Traffic:
    """Sends requests from a thread, ``per_s`` each second: streams, bodies, and one in ten that is refused."""

    def __init__(self, url: str, per_s: float) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._every_s = 1.0 / per_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._send, name="traffic")
        self.sent = 0

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _send(self) -> None:
        due = time.monotonic()
        with httpx.Client(timeout=30.0) as client:
            while not self._ends.wait(max(0.0, due - time.monotonic())):
                number = self.sent
                messages = [{"role": "user", "content": f"question {number}"}]
                model = MODEL if number % 10 else f"nobody-{number}"
                client.post(self._url, json={"model": model, "messages": messages, "stream": bool(number % 2)})
                self.sent += 1
                due = max(due + self._every_s, time.monotonic() - 1.0)


def main() -> int:
    """Run with the command line's arguments. Returns the exit status: 1 when something has grown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic that is looked at (default 60)")
    parser.add_argument("--warmup", type=float, default=25.0, help="seconds of traffic before (default 25)")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second (default 20)")
    args = parser.parse_args()
    end_when_terminated()
    with _page() as (page, running, url):
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        page.goto(f"{url}/ui/#/now")
        with Traffic(url, args.rate) as traffic:
            page.wait_for_timeout(args.warmup * 1000)
            sizes = list(_sizes(page, session, running, traffic, args.seconds))
    grown = growth(sizes)
    if args.json:
        print(json.dumps({"sizes": [asdict(each) for each in sizes], "growth": grown}))
    else:
        _print(sizes, grown)
    return int(any(grown[name] > most for name, most in ALLOWED.items()))


@contextlib.contextmanager
def _page() -> Iterator[tuple[Page, Running, str]]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        sys.exit(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-dashboard-")))
        ports = stack.enter_context(upstreams(2))
        target = Target("dashboard", "paceline", _arguments)
        program = target.find()
        assert program is not None, "paceline is not installed beside this Python"
        running = stack.enter_context(gateway(target, program, ports, folder / "gateway"))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        stack.callback(browser.close)
        yield browser.new_page(), running, f"http://127.0.0.1:{running.port}"


def _arguments(site: Site) -> list[str]:
    """Those of the other benchmarks, without a key: the page asks for none then."""
    arguments = paceline_arguments(site)
    config = Path(arguments[-1])
    config.write_text(
        json.dumps({name: each for name, each in json.loads(config.read_text()).items() if name != "auth"})
    )
    return arguments


def _sizes(page: Page, session: CDPSession, running: Running, traffic: Traffic, seconds: float) -> Iterator[Size]:
    begun = time.monotonic()
    while (passed_s := time.monotonic() - begun) < seconds:
        for _ in range(2):
            session.send("HeapProfiler.collectGarbage")
        found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        heap_mb, listeners = found["JSHeapUsedSize"] / 1e6, int(found["JSEventListeners"])
        yield Size(passed_s, traffic.sent, heap_mb, int(found["Nodes"]), listeners, running.rss_mb())
        page.wait_for_timeout(EVERY_S * 1000)


def growth(sizes: list[Size]) -> dict[str, float]:
    """Return by what factor each figure's median is bigger in the last third than in the first."""
    third = max(1, len(sizes) // 3)
    return {
        name: median(getattr(each, name) for each in sizes[-third:])
        / median(getattr(each, name) for each in sizes[:third])
        for name in ALLOWED
    }


def _print(sizes: list[Size], grown: dict[str, float]) -> None:
    table = Table(title="An open dashboard under live traffic")
    for title in ("after s", "requests", "heap MB", "nodes", "listeners", "gateway MB"):
        table.add_column(title, justify="right")
    for each in sizes:
        figures = f"{each.heap_mb:.2f}", str(each.nodes), str(each.listeners), f"{each.gateway_mb:.1f}"
        table.add_row(f"{each.at_s:.0f}", str(each.requests), *figures)
    table.add_section()
    table.add_row("last third", "by", *(f"{grown[name]:.3f}" for name in ALLOWED))
    table.add_row("allowed", "", *(f"{most:.3f}" for most in ALLOWED.values()))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
