"""The overhead benchmark runs against this Paceline and gets every figure; how good they are no test can say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_overhead_benchmark_measures_paceline_without_an_error() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.overhead",
        "--quick",
        "--json",
        "--only",
        "paceline",
        "--deployments",
        "2",
    ]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert finished.returncode == 0, finished.stderr
    figures = json.loads(finished.stdout)["figures"]
    assert set(figures) == {"direct", "paceline"}
    expected = {"cpu_ms_1", "cpu_ms_16", "cpu_ms_64", "requests_s", "added_p50_ms", "added_p99_ms", "chunks_s_1"}
    expected |= {"chunks_s_16", "cpu_us_chunk", "added_first_byte_ms", "rss_mb", "start_s"}
    assert set(figures["paceline"]) == expected
    assert figures["paceline"]["cpu_ms_64"] > 0
    assert figures["direct"]["requests_s"] > figures["paceline"]["requests_s"]
