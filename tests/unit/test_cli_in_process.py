"""Branches of the commands that need no process of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import up as up_module
from gateway.cli.app import app
from gateway.cli.output import UserError
from gateway.settings import load_settings

NOTHING = "server: {port: 1}\ndiscovery: {enabled: false}\n"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "data"))
    (tmp_path / "paceline.yaml").write_text(NOTHING)


def run(words: Sequence[str], **options: str) -> Result:
    return CliRunner().invoke(app, words, **options)  # type: ignore[arg-type]


def refusal(*words: str) -> UserError:
    error = run(words).exception
    assert isinstance(error, UserError)
    return error


@pytest.mark.parametrize("words", [("models",), ("explain", "hi", "--model", "m")])
def test_an_address_where_nobody_answers_is_an_error_when_it_was_asked_for(words: tuple[str, ...]) -> None:
    assert "paceline up" in refusal(*words, "--url", "http://127.0.0.1:1").fix


def test_no_model_at_all_leads_to_the_doctor() -> None:
    assert "paceline doctor" in refusal("models").fix
    assert "paceline doctor" in refusal("explain", "hi", "--model", "m").message


def test_doctor_goes_on_with_what_it_can_when_records_are_broken(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a folder should be")
    done = run(["doctor"])
    assert done.exit_code == 1
    assert "cannot be written" in done.stdout
    assert "packages" in done.stdout


def test_an_objective_that_does_not_exist_is_typed_wrongly() -> None:
    done = run(["explain", "hi", "--model", "m", "--objective", "fast"])
    assert done.exit_code == 2
    assert "latency, ttft, throughput" in done.stderr


def test_a_prompt_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    answer = {"chosen": "near", "rule": "only", "reason": "the only one", "prompt_tokens": 7}
    monkeypatch.setattr(
        "gateway.cli.running.RunningGateway.explain", lambda _, question: asked.append(question) or answer
    )
    done = run(["explain", "-", "--model", "m"], input="a long prompt")
    assert done.exit_code == 0
    assert asked[0]["prompt"] == "a long prompt"


def test_explain_shows_candidates_with_their_times_and_the_rejected_with_their_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = {
        "chosen": "near",
        "rule": "fastest",
        "reason": "0.5 s sooner than far",
        "prompt_tokens": 7,
        "candidates": [
            {
                "deployment": "near",
                "reason": "soonest",
                "ttft_s": 0.1,
                "total_s": 1.25,
                "total_low_s": 1.0,
                "total_high_s": 1.6,
            },
            {"deployment": "new", "reason": "not measured"},
        ],
        "rejected": [{"deployment": "small", "code": "context", "reason": "takes 512 tokens"}],
    }
    monkeypatch.setattr("gateway.cli.running.RunningGateway.explain", lambda *_: answer)
    lines = run(["explain", "hi", "--model", "m"]).stdout.splitlines()
    assert lines[0] == "near: 0.5 s sooner than far"
    assert any(line.split() == ["near", "0.10", "1.2", "1", "to", "1.6", "soonest"] for line in lines)
    assert any(line.split() == ["new", "-", "-", "-", "not", "measured"] for line in lines)
    assert any(line.split() == ["small", "context", "takes", "512", "tokens"] for line in lines)


def test_a_prompt_that_nobody_would_serve_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"chosen": None, "rule": "none", "reason": "nobody can serve this", "prompt_tokens": 7}
    monkeypatch.setattr("gateway.cli.running.RunningGateway.explain", lambda *_: answer)
    assert run(["explain", "hi", "--model", "m"]).exit_code == 1


def test_init_to_standard_output_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DISCOVERY__PORTS", "[1]")
    (tmp_path / "paceline.yaml").unlink()
    assert "# engines:" in run(["init", "--output", "-"]).stdout
    assert not (tmp_path / "paceline.yaml").exists()


def test_init_overwrites_when_told_to_and_says_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DISCOVERY__PORTS", "[1]")
    assert '"engines": []' in run(["init", "--force", "--json"]).stdout
    assert "# engines:" in (tmp_path / "paceline.yaml").read_text()
    assert list(tmp_path.glob("*.partial")) == []


def test_init_says_when_the_file_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DISCOVERY__PORTS", "[1]")
    assert "--output" in refusal("init", "--output", "no/such/folder.yaml").fix


def test_up_does_not_start_beside_another_distributions_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.packages.strangers", lambda: {"adapters": "/elsewhere/adapters"})
    error = refusal("up")
    assert "/elsewhere/adapters" in error.message
    assert "pipx" in error.fix


def test_up_does_not_start_with_a_key_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_module, "_refuse_strangers", lambda: None)
    monkeypatch.setattr("gateway.logs.set_up_logging", lambda _: None)
    monkeypatch.setenv("SHORT_KEY", "short")
    (tmp_path / "paceline.yaml").write_text("auth: {keys: [{name: a, env: SHORT_KEY}]}")
    assert "too short" in refusal("up").problems[0]["what"]


def test_up_with_a_model_needs_torch_and_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.launch.importlib.util.find_spec", lambda name: None)
    assert "pip install 'paceline[engine]'" in refusal("up", "--model", str(tmp_path)).message
    assert "no such model" in refusal("up", "--model", "nowhere.gguf").message


def test_up_with_a_model_starts_the_built_in_engine_beside_what_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.launch.importlib.util.find_spec", lambda name: name)
    assert "neither a model folder" in refusal("up", "--model", str(tmp_path)).message
    (tmp_path / "config.json").touch()
    (tmp_path / "paceline.yaml").write_text("engines: [{name: a, url: 'http://127.0.0.1:1'}]")
    settings = up_module._serving(load_settings(None), tmp_path)
    assert [engine.name for engine in settings.engines] == ["a", "builtin"]
    launch = settings.engines[1].launch
    assert launch is not None
    assert (launch.engine, launch.model) == ("builtin", str(tmp_path))
    assert not settings.discovers
    (tmp_path / "paceline.yaml").write_text("")
    assert up_module._serving(load_settings(None), tmp_path).discovers
    (tmp_path / "paceline.yaml").write_text("engines: [{name: builtin, url: 'http://127.0.0.1:1'}]")
    assert "has an engine 'builtin' already" in refusal("up", "--model", str(tmp_path)).message
