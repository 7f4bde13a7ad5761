"""What README and the examples tell a reader to do works as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engines.scripted import ScriptedEngine
from gateways import Gateway, engine_at
from shell import ROOT, Shell

from gateway.settings import load_settings

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MODEL = "SmolLM2-135M-Instruct"
NEED_MORE = {"bench", "cache", "compare", "experiment", "switch", "top", "why"}
"""Commands that need minutes, a running gateway or records: their own tests run them; here it is seen that they are."""


def commands(page: str) -> list[str]:
    """Return the commands in a page's code blocks that have no language, or that of a shell."""
    blocks = re.findall(r"^```(?:sh|bash)?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip()]


def paceline_commands() -> list[list[str]]:
    found = [shlex.split(re.split(r" {3,}|  #", line)[0]) for line in commands(README)]
    return [words[1:] for words in found if words and words[0] == "paceline"]


def test_readme_begins_with_the_two_commands() -> None:
    assert commands(README)[:2] == ["git clone <this repository> && cd paceline", "scripts/demo"]


@pytest.mark.parametrize("words", paceline_commands(), ids=" ".join)
def test_every_command_of_readme_is_one(
    words: list[str], shell: Shell, scripted: Callable[..., ScriptedEngine]
) -> None:
    engine = scripted(kind="llamacpp", model=f"{MODEL}.Q8_0.gguf")
    shell.configure(f"engines: [{{name: near, url: '{engine.url}'}}]\n")
    if words[0] == "up":
        if "--model" in words:  # a real model is served so in the stage that has torch
            done = shell.run(*words)
            assert done.returncode == 1
            assert f"no such model: {words[-1]}" in done.stdout + done.stderr
            return
        if "--host" in words:  # keys first, as the text says
            done = shell.run(*words)
            assert done.returncode == 1
            assert "paceline key" in done.stdout + done.stderr
            return
        shell.up(*words[1:]).process.terminate()
        return
    if words[0] == "init":
        words = [*words, "--force"]
    if words[0] in NEED_MORE:
        words = [*words, "--help"]
    done = shell.run(*words)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_curl_of_readme_is_answered(
    gateway: Callable[..., Gateway], scripted: Callable[..., ScriptedEngine]
) -> None:
    engine = scripted(kind="vllm")
    running = gateway(engines=[engine_at(engine, "a", models={engine.model: MODEL})])
    (curl,) = [line for line in commands(README) if line.startswith("curl")]
    words = shlex.split(curl.replace("http://127.0.0.1:7223", running.url))
    done = subprocess.run([words[0], "-sS", *words[1:]], capture_output=True, text=True, timeout=30, check=True)
    assert '"content":"Hello!"' in done.stdout.replace(": ", ":")


def test_the_example_client_says_who_answered(
    gateway: Callable[..., Gateway], scripted: Callable[..., ScriptedEngine], tmp_path: Path
) -> None:
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")])
    program = (ROOT / "examples/client.py").read_text().replace("http://127.0.0.1:7223", running.url)
    (tmp_path / "client.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "client.py")], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("Hello!\na: ")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_example_configurations_are_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFICE_OPERATOR_KEY", "sk-pl-0123456789abcdef0123")
    assert load_settings(path).engines


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_scripts_that_the_pages_name_exist_and_have_help() -> None:
    named = {word for page in PAGES for word in re.findall(r"\bscripts/(?:demo|test|check)\b", page.read_text())}
    assert named == {"scripts/demo", "scripts/test", "scripts/check"}
    for script in sorted(named - {"scripts/demo"}):
        done = subprocess.run([ROOT / script, "--help"], capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout.startswith("usage:")
