"""A real Prometheus for tests, from Debian's package or wherever it is on the path, and promtool beside it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

LIMIT_S = 30.0


def needed(program: str) -> str:
    """Return a program's path; skip the test, and say so, where there is none."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"NO {program.upper()}: install Debian's package prometheus")
    return found


class NotReady(Exception):
    """It is still starting."""


class Prometheus:
    """Scrapes one address every 200 ms, as OpenMetrics with exemplars."""

    def __init__(self, folder: Path, target: str, rules: Path | None = None, key: str = "") -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        authorization = f"authorization: {{credentials: {key}}}" if key else "honor_labels: false"
        config = folder / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 1s}}\n"
            f"rule_files: [{rules or ''}]\n"
            f"scrape_configs:\n- job_name: paceline\n  {authorization}\n"
            f"  static_configs: [{{targets: ['{target.removeprefix('http://')}']}}]\n"
        )
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                needed("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=LIMIT_S)

    def ask(self, path: str, **parameters: Any) -> Any:
        """Return the data of an answer. Raises AssertionError where it is refused, NotReady at first."""
        said = self._client.get(path, params=parameters)
        if said.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise NotReady
        answer = said.json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return an instant query's result: its labels in their order, and the value."""
        result = self.ask("/query", query=expression)["result"]
        return {tuple(sorted(each["metric"].items())): float(each["value"][1]) for each in result}

    def wait_for(self, expression: str, value: float) -> None:
        """Return once a query has this one value. Raises AssertionError after a limit."""
        end = time.monotonic() + LIMIT_S
        found: object = "it did not start"
        while time.monotonic() < end:
            try:
                found = self.query(expression)
            except (httpx.TransportError, NotReady):
                assert self._process.poll() is None, "Prometheus has ended"
                continue
            if found == {(): value}:
                return
        raise AssertionError(f"{expression} is {found}, not {value}")

    def stop(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(LIMIT_S)
        self._log.close()
