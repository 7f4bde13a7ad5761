"""`paceline` as its users run it: in processes of their own, with a folder and a data folder of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT_S = 30.0


class Shell:
    """Runs `paceline` in a folder of its own, with a data folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
        self.environment |= {"PYTHONPATH": str(ROOT), "PACELINE_DATA": str(folder / "data"), "NO_COLOR": "1"}
        self.environment["PACELINE_CACHE__MODE"] = "off"  # tests send the same request again, and mean it
        self.started: list[subprocess.Popen[str]] = []

    def close(self) -> None:
        """End what is still running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait(LIMIT_S)
            assert process.stdout is not None
            process.stdout.close()

    def configure(self, text: str) -> Path:
        path = self.folder / "paceline.yaml"
        path.write_text(text)
        return path

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gateway", *words],
            cwd=self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def up(self, *words: str) -> Running:
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "up", "--port", "0", "--json", *words],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.started.append(process)
        return Running(process, self.folder / "log")


class Running:
    """A `paceline up` that serves; ``said`` is what it printed."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log
        assert process.stdout is not None
        text = ""
        while line := process.stdout.readline():
            text += line
            if line == "}\n":
                break
        assert text, log.read_text()
        self.said: dict[str, Any] = json.loads(text)
        self.url: str = self.said["url"]

    def get(self, path: str, **headers: str) -> Any:
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.load(answer)

    def stop(self) -> int:
        """Ask it to stop, and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)
