"""`paceline bench` as its users run it, and what docs/measuring.md tells a reader to do by hand."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import llama
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import chat, stall, text, whole
from engines.shapes import describe
from gateways import Gateway, chat_body, engine_at
from shell import LIMIT_S, ROOT, Shell

from measure.records import Kind, Record
from measure.store import Store

REAL_LIMIT_S = 180.0
"""For a benchmark of a real engine, on a machine that does other things as well."""
PAGE = (ROOT / "docs/measuring.md").read_text()
IDLE = "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
WORDS = ["word ", "by ", "word "]


async def answer(exchange: Exchange) -> None:
    asked = exchange.request.json
    words = [WORDS[i % 3] for i in range(asked["max_tokens"])]
    await chat(words, prompt_tokens=len(asked["prompt"].encode()) // 4)(exchange)


def stored(shell: Shell, kind: Kind) -> list[Record]:
    store = Store(shell.folder / "data" / "records.sqlite3")
    try:
        return store.records(kind=kind)[::-1]
    finally:
        store.close()


def begin(shell: Shell, *words: str) -> subprocess.Popen[str]:
    """Start the command in a process that ends with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "bench", *words],
        cwd=shell.folder,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    shell.started.append(process)
    return process


def configure(shell: Shell, engine: ScriptedEngine) -> None:
    engine.always(answer)
    engine.routes["GET /metrics"] = text(IDLE)
    props = describe("llamacpp", engine.model)["GET /props"]
    assert isinstance(props, dict)
    engine.routes["GET /props"] = whole({**props, "default_generation_settings": {"n_ctx": 512}})
    shell.configure(
        f"server: {{port: 1}}\ndiscovery: {{enabled: false}}\nengines: [{{name: near, url: '{engine.url}'}}]\n"
    )


def test_a_benchmark_is_told_as_a_table_and_kept(shell: Shell, engine: ScriptedEngine) -> None:
    configure(shell, engine)
    done = shell.run(
        *("bench", "near", "--prompt-tokens", "64", "--output-tokens", "8", "--runs", "3", "--concurrency", "1")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "near: 64 in, 8 out, 1 at once: TTFT" in done.stderr
    assert done.stdout.startswith("near: tiny int4 Q4_K_M, llamacpp")
    (record,) = stored(shell, Kind.GRID)
    assert (record.asked.prompt_tokens, record.output_tokens, len(record.runs)) == (64, 8, 3)
    assert record.settings
    pairs = stored(shell, Kind.PAIR)
    assert {pair.beside.activity for pair in pairs if pair.beside} == {"decoding", "prefilling"}
    assert {pair.bench for pair in pairs} == {record.bench}


def test_in_json_it_is_the_records(shell: Shell, engine: ScriptedEngine) -> None:
    configure(shell, engine)
    told = json.loads(shell.run("bench", "--quick", "--json").stdout)
    assert told["finished"]
    assert told["given_up"] == {}
    assert [Record.from_dict(record).kind for record in told["records"]] == [Kind.QUICK] * 3
    assert stored(shell, Kind.QUICK) == [Record.from_dict(record) for record in told["records"]]


@pytest.mark.parametrize(
    "words", [("--prompt-tokens", "64,x"), ("--output-tokens", "0"), ("--runs", "2"), ("no-such-model",)]
)
def test_what_is_typed_wrongly_ends_with_2(shell: Shell, engine: ScriptedEngine, words: tuple[str, ...]) -> None:
    configure(shell, engine)
    done = shell.run("bench", *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert engine.requests == []


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(shell: Shell, engine: ScriptedEngine) -> None:
    configure(shell, engine)
    words = ("--prompt-tokens", "32,64", "--output-tokens", "8", "--runs", "3", "--concurrency", "1")
    engine.next(*[answer] * 5, stall(after=1))
    process = begin(shell, *words, "--json")
    request = engine.received_blocking(5)
    for _ in range(2):  # the second one comes while it ends
        process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    assert "the same command goes on from there" in errors
    assert "Traceback" not in errors
    request.left.wait_blocking()
    assert not json.loads(out)["finished"]
    assert len(stored(shell, Kind.GRID)) == 1

    done = shell.run("bench", *words)
    assert done.returncode == 0, done.stderr
    assert "going on with benchmark" in done.stderr
    assert "measured before" in done.stderr
    first, second = stored(shell, Kind.GRID)
    assert first.bench == second.bench
    assert "going on" not in shell.run("bench", *words, "--no-wait").stderr


def test_it_waits_for_what_a_running_paceline_serves(
    gateway: Callable[..., Gateway], shell: Shell, engine: ScriptedEngine
) -> None:
    configure(shell, engine)
    running = gateway(engines=[engine_at(engine, "near")])
    engine.next(stall(after=1))
    with subprocess.Popen(
        ["curl", "-sN", f"{running.url}/v1/chat/completions", "-H", "content-type: application/json", "-d", _live()],
        stdout=subprocess.DEVNULL,
    ) as live:
        engine.received_blocking(0)
        process = begin(shell, "--quick", "--wait-limit", "20", "--url", running.url)
        assert process.stderr is not None
        said = process.stderr.readline()
        live.terminate()
    assert said == "waiting for live traffic to end: 1 request at near\n"
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, out + errors
    assert not any(record.disturbed for record in stored(shell, Kind.QUICK))


def _live() -> str:
    return json.dumps(chat_body("hello", stream=True))


def blocks(language: str = "sh") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("line", [line.partition("#")[0].strip() for line in blocks()[0].splitlines()])
def test_the_commands_of_the_page_are_accepted(shell: Shell, engine: ScriptedEngine, line: str) -> None:
    configure(shell, engine)
    path = shell.folder / "paceline.yaml"
    path.write_text(path.read_text().replace("name: near,", "name: near, models: {tiny.gguf: smollm2},"))
    words = shlex.split(line)
    assert words.pop(0) == "paceline"
    done = shell.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.llamacpp
def test_the_measurement_by_hand_shows_what_the_page_says(llamacpp: llama.LlamaServer, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said = ""
    for block in blocks()[1:]:
        script = block.replace("http://127.0.0.1:8080", llamacpp.url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        said = done.stdout
    first, last, *counts, timings = said.splitlines()
    assert int(first.split()[0]) <= int(last.split()[0])
    usage = json.loads("{" + ",".join(counts) + "}")
    assert usage["completion_tokens"] == 32
    assert usage["prompt_tokens"] == pytest.approx(256, rel=0.35)
    assert json.loads(timings.partition(":")[2])["cache_n"] == 0


@pytest.mark.llamacpp
def test_a_real_llama_cpp_is_started_measured_interrupted_measured_on_and_stopped(shell: Shell) -> None:
    pytest.importorskip("xllamacpp", reason="NO REAL LLAMA.CPP: install paceline[llamacpp]")
    shell.configure(
        f"""
        server: {{port: 1}}
        discovery: {{enabled: false}}
        engines: [{{name: own, launch: {{engine: llamacpp, model: {llama.gguf()}, context: 512, slots: 2}}}}]
        """
    )
    words = ("--prompt-tokens", "32,64", "--output-tokens", "8", "--runs", "3", "--concurrency", "2", "--json")
    process = begin(shell, *words)
    assert process.stderr is not None
    while "own: " not in (line := process.stderr.readline()):
        assert line, "it ended before its first cell"
    for _ in range(2):
        process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "Traceback" not in errors
    before = [Record.from_dict(record) for record in json.loads(out)["records"]]
    assert before

    process = begin(shell, *words)
    out, errors = process.communicate(timeout=REAL_LIMIT_S)
    assert process.returncode == 0, errors
    records = [Record.from_dict(record) for record in json.loads(out)["records"]]
    grid = [record for record in records if record.kind is Kind.GRID]
    assert grid[: len(before)] == before
    assert [(r.asked.prompt_tokens, r.asked.concurrency) for r in grid] == [(32, 1), (64, 1), (32, 2), (64, 2)]
    for record in grid:
        assert not record.failed
        assert record.output_tokens == 8
        assert record.uncached_tokens == record.prompt_tokens
        # Two short texts of one length in bytes differ by a tenth in tokens, the worst of 500 such medians by 0.41.
        assert record.prompt_tokens == pytest.approx(record.asked.prompt_tokens, rel=0.5)
        assert record.peak_memory_bytes is not None
        assert record.peak_memory_bytes > 90_000_000
        assert record.engine_prefill_s is not None
        assert record.settings["batch"] == "128"
    pairs = [record for record in records if record.kind is Kind.PAIR]
    assert {pair.beside.activity for pair in pairs if pair.beside} == {"decoding", "prefilling"}


def test_what_changed_since_the_last_record_of_each_cell_is_told_when_asked(
    shell: Shell, engine: ScriptedEngine
) -> None:
    configure(shell, engine)
    words = ("bench", "--quick", "--no-wait", "--compare-last")
    assert "measured for the first time (3 cells)" in shell.run(*words).stdout
    told = shell.run(*words).stdout
    assert "Nothing differs: last and now are the same thing, measured twice." in told
    (since_last,) = json.loads(shell.run(*words, "--json").stdout)["since_last"]
    assert len(since_last["cells"]) == 3
