from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import file_limit
from gateway.checks import machine
from gateway.checks.finding import Finding, Level
from gateway.checks.machine import check_data, check_files, check_memory, check_packages
from gateway.checks.server import check_exposure, check_port, check_secrets
from gateway.file_limit import FileLimit, needed_files, raise_file_limit
from gateway.keys import hash_key, new_key
from gateway.packages import strangers
from gateway.settings import (
    AuthSettings,
    EngineSettings,
    KeySettings,
    LaunchKind,
    LaunchSettings,
    LimitSettings,
    ServerSettings,
    Settings,
    load_settings,
)


def only(findings: Iterator[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_paceline_s_packages_are_its_own_here() -> None:
    assert only(check_packages()).level is Level.OK


def test_a_package_that_belongs_to_another_distribution_has_to_be_fixed(tmp_path: Path) -> None:
    assert set(strangers(tmp_path)) == {"adapters", "cache", "engine", "measure", "policies"}
    findings = list(check_packages(tmp_path))
    assert {finding.level for finding in findings} == {Level.FIX}
    assert "pipx" in findings[0].todo


def test_a_package_that_is_missing_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "measure", None)
    assert strangers() == {"measure": "nowhere"}


def test_files_are_counted_for_both_sides_of_a_request() -> None:
    small = needed_files(LimitSettings(max_concurrent=10, queue=5))
    assert needed_files(LimitSettings(max_concurrent=20, queue=5)) - small == 20
    assert needed_files(LimitSettings(max_concurrent=10, queue=6)) - small == 1


@pytest.mark.parametrize(("hard", "level"), [(1_000_000, Level.OK), (100, Level.WARN)])
def test_too_few_open_files_are_a_warning_with_what_to_raise(
    monkeypatch: pytest.MonkeyPatch, hard: int, level: Level
) -> None:
    monkeypatch.setattr(machine, "file_limit", lambda: FileLimit(64, hard))
    finding = only(check_files(Settings()))
    assert finding.level is level
    assert level is Level.OK or "ulimit" in finding.todo


def test_the_limit_is_raised_as_far_as_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(file_limit, "file_limit", lambda: FileLimit(64, 1000))
    monkeypatch.setattr(file_limit.resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert raise_file_limit(500)
    assert not raise_file_limit(2000)
    assert raise_file_limit(10)
    assert raised == [(500, 1000), (1000, 1000)]


def launched(model: Path) -> Settings:
    launch = LaunchSettings(engine=LaunchKind.LLAMACPP, model=str(model))
    return Settings(engines=(EngineSettings(name="own", launch=launch),))


def test_models_that_do_not_fit_into_memory_are_a_warning(tmp_path: Path) -> None:
    model = tmp_path / "huge.gguf"
    with model.open("wb") as file:
        file.truncate(1 << 50 if sys.platform == "darwin" else 1 << 43)
    finding = only(check_memory(launched(model)))
    assert finding.level is Level.WARN
    assert "smaller quantisations" in finding.todo


def test_a_model_that_fits_is_fine_as_far_as_memory_goes(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"x")
    assert "memory are free" in only(check_memory(launched(tmp_path / "tiny.gguf"))).what


def test_the_data_folder_may_be_made_later_but_has_to_be_a_folder(tmp_path: Path) -> None:
    assert only(check_data(tmp_path / "a" / "b")).level is Level.NOTE
    assert only(check_data(tmp_path)).level is Level.OK
    (tmp_path / "file").write_text("")
    assert only(check_data(tmp_path / "file")).level is Level.FIX


def test_little_room_for_records_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LITTLE_DISK_BYTES", 1 << 60)
    assert only(check_data(tmp_path)).level is Level.WARN


def on_port(port: int) -> Settings:
    return Settings(server=ServerSettings(port=port))


def test_a_free_port_is_free_and_a_taken_one_has_to_be_fixed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken = only(check_port(on_port(port)))
    assert taken.level is Level.FIX
    assert f"127.0.0.1:{port} is taken" in taken.what
    assert only(check_port(on_port(port))).level is Level.OK
    assert only(check_port(on_port(0))).level is Level.OK


def test_an_open_address_without_keys_has_to_be_fixed() -> None:
    finding = only(check_exposure(Settings(server=ServerSettings(host="0.0.0.0"))))
    assert finding.level is Level.FIX
    assert "paceline key" in finding.todo


def test_keys_on_an_open_address_are_noted_as_unencrypted() -> None:
    auth = AuthSettings(keys=(KeySettings(name="a", hash=hash_key(new_key())),))
    assert only(check_exposure(Settings(auth=auth))).level is Level.OK
    finding = only(check_exposure(Settings(auth=auth, server=ServerSettings(host="0.0.0.0"))))
    assert finding.level is Level.NOTE
    assert "TLS" in finding.todo


def test_a_key_that_cannot_be_used_has_to_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT_KEY", "short")
    auth = AuthSettings(keys=(KeySettings(name="a", env="SHORT_KEY"),))
    assert "too short" in only(check_exposure(Settings(auth=auth))).what


def test_a_file_with_an_engines_key_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "paceline.yaml"
    path.write_text("engines: [{name: a, url: 'http://127.0.0.1:1', api_key: hunter2-hunter2}]")
    path.chmod(0o644)
    finding = only(check_secrets(load_settings(path)))
    assert finding.level is Level.WARN
    assert "hunter2" not in finding.what + finding.todo
    path.chmod(0o600)
    assert list(check_secrets(load_settings(path))) == []
