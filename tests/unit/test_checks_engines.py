from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from adapters.base import EngineDescription, ModelDescription
from gateway.checks import engines as checks
from gateway.checks.engines import check_engines, check_launch, check_running
from gateway.checks.finding import Finding, Level
from gateway.settings import DiscoverySettings, EngineKind, EngineSettings, LaunchKind, LaunchSettings, Settings
from policies.types import Health, Precision


@dataclass
class Seen:
    name: str
    health: Health
    note: str
    description: EngineDescription | None


def engine(*models: ModelDescription, health: Health = Health.UP, note: str = "") -> Seen:
    described = EngineDescription("llamacpp", "llama.cpp", "b9549", models) if health is Health.UP else None
    return Seen("near", health, note, described)


def configured(precision: Precision | None = None) -> EngineSettings:
    return EngineSettings(name="near", url="http://127.0.0.1:8080", precision=precision)


def of(check: str, findings: object) -> Finding:
    (finding,) = [finding for finding in findings if finding.check == check]  # type: ignore[attr-defined]
    return finding


INT4 = ModelDescription("m", Precision.INT4, "Q4_1", "engine", context=8192)


def test_an_engine_that_answers_is_told_with_its_version_and_real_precision() -> None:
    findings = list(check_running(engine(INT4), configured()))
    assert {finding.level for finding in findings} == {Level.OK}
    assert of("engines", findings).what == "near is llama.cpp b9549 with 1 model"
    assert of("precision", findings).what == "near: m runs int4 Q4_1 (says engine)"


@pytest.mark.parametrize(
    ("said", "level"),
    [(None, Level.OK), (Precision.INT4, Level.OK), (Precision.UNKNOWN, Level.OK), (Precision.FP16, Level.FIX)],
)
def test_a_configured_precision_that_is_not_the_real_one_has_to_be_fixed(said: Precision | None, level: Level) -> None:
    assert of("precision", check_running(engine(INT4), configured(said))).level is level


def test_a_precision_that_nobody_knows_is_a_warning() -> None:
    finding = of("precision", check_running(engine(ModelDescription("m", context=8192)), configured()))
    assert finding.level is Level.WARN
    assert "model_dir" in finding.todo


@pytest.mark.parametrize(("context", "level"), [(2048, Level.WARN), (4096, Level.OK), (None, Level.NOTE)])
def test_a_small_context_is_a_warning_that_says_how_the_engine_gets_a_larger_one(
    context: int | None, level: Level
) -> None:
    model = ModelDescription("m", Precision.INT4, context=context)
    finding = of("context", check_running(engine(model), configured()))
    assert finding.level is level
    assert level is not Level.WARN or "--ctx-size" in finding.todo


def test_an_engine_that_is_down_has_to_be_fixed_and_one_that_loads_does_not() -> None:
    down = of("engines", check_running(engine(health=Health.DOWN, note="connection refused"), configured()))
    assert (down.level, down.what) == (Level.FIX, "near cannot be used: connection refused")
    loading = of("engines", check_running(engine(health=Health.LOADING, note="loading"), configured()))
    assert loading.level is Level.NOTE


def test_no_engine_at_all_says_where_it_was_looked() -> None:
    finding = of("engines", check_engines(Settings(), []))
    assert finding.level is Level.FIX
    assert "8080" in finding.what
    never = Settings(discovery=DiscoverySettings(enabled=False))
    assert "discovery.enabled is false" in of("engines", check_engines(never, [])).what


def test_a_hosted_api_without_its_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda _: None)
    hosted = EngineSettings(name="far", kind=EngineKind.HOSTED, models={"openai/gpt": "gpt"})
    assert "paceline[hosted]" in of("engines", check_engines(Settings(engines=(hosted,)), [])).todo


def check(launch: LaunchSettings, folder: Path) -> Finding:
    return of("engines", check_launch(EngineSettings(name="own", launch=launch), launch, folder))


def test_an_engine_that_can_be_started_is_fine(tmp_path: Path) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    (tmp_path / "m.gguf").write_text("")
    launch = LaunchSettings(engine=LaunchKind.LLAMACPP, model=str(tmp_path / "m.gguf"), binary=binary)
    assert check(launch, tmp_path).level is Level.OK


def test_a_model_that_is_not_there_has_to_be_fixed(tmp_path: Path) -> None:
    finding = check(LaunchSettings(engine=LaunchKind.LLAMACPP, model="none.gguf"), tmp_path)
    assert finding.level is Level.FIX
    assert "none.gguf" in finding.what
    assert "engines[].launch of own" in finding.todo


@pytest.mark.parametrize(
    "launch",
    [
        LaunchSettings(engine=LaunchKind.VLLM, model="Qwen/Qwen3-8B", python=Path("/no/python")),
        LaunchSettings(engine=LaunchKind.OLLAMA, binary=Path("/no/ollama")),
    ],
    ids=["vllm", "ollama"],
)
def test_a_program_that_is_not_there_has_to_be_fixed(launch: LaunchSettings, tmp_path: Path) -> None:
    assert check(launch, tmp_path).level is Level.FIX
