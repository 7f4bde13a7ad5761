"""The benchmarks of routing run and say what they promise; how good the figures are is for their readers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", *arguments, "--quick", "--json"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert finished.returncode == 0, finished.stderr
    report: dict[str, Any] = json.loads(finished.stdout)
    return report


def test_the_simulator_prints_each_policy_beside_the_oracle() -> None:
    lines = run("benchmarks.routing", "--only", "chat,bursts")["lines"]
    policies = {line["policy"] for line in lines}
    assert {"random", "round robin", "least busy", "lowest latency", "peak EWMA", "power of two choices"} < policies
    assert {(line["scene"], line["policy"]) for line in lines} == {(s, p) for s in ("chat", "bursts") for p in policies}
    assert all(line["regret"] == 0.0 for line in lines if line["policy"] == "oracle")


def test_the_price_of_a_decision_is_printed_for_idle_and_busy_fleets() -> None:
    rows = run("benchmarks.decision")["decisions_us"]
    assert [row["deployments"] for row in rows] == [1, 8, 100]
    assert all(row["idle"] > 0.0 and row["all busy, 2 on a host"] > 0.0 for row in rows)
