from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from pydantic import ValidationError

from gateway.settings import Settings, SettingsError, load_settings
from policies.types import Capability, Objective, Precision


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACELINE_CONFIG", raising=False)


def load(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "paceline.yaml"
    path.write_text(dedent(text), encoding="utf-8")
    return load_settings(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    return str(caught.value)


def test_without_a_file_it_serves_this_machine_only_and_finds_engines() -> None:
    settings = load_settings()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 7223)
    assert settings.server.max_body_bytes == 32 * 1024 * 1024
    assert settings.auth.keys == ()
    assert settings.discovers
    assert settings.path is None


def test_engines_that_are_configured_end_the_search_unless_it_is_asked_for(tmp_path: Path) -> None:
    engine = "engines: [{name: a, url: 'http://127.0.0.1:1'}]\n"
    assert not load(tmp_path, engine).discovers
    assert load(tmp_path, engine + "discovery: {enabled: true}").discovers


def test_everything_about_an_engine_can_be_said(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        engines:
          - name: workstation
            kind: vllm
            url: http://10.0.0.3:8000/v1/
            precision: bf16
            models: {Qwen/Qwen3-8B: qwen3-8b}
            capabilities: {tools: false}
            hardware: {host: rack-3, devices: [gpu0]}
          - name: own
            launch: {engine: llamacpp, model: tiny.gguf, slots: 2, args: [--flash-attn, "on"], env: {A: b}}
        models:
          qwen3-8b: {aliases: [gpt-4o-mini], objective: ttft}
        """,
    )
    first, second = settings.engines
    assert first.url == "http://10.0.0.3:8000"
    assert first.precision is Precision.BF16
    assert first.capabilities == {Capability.TOOLS: False}
    assert second.launch is not None
    assert second.launch.args == ("--flash-attn", "on")
    assert settings.models["qwen3-8b"].objective is Objective.TTFT


def test_a_variable_comes_before_the_file_and_leaves_its_neighbours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_SERVER__PORT", "9000")
    monkeypatch.setenv("PACELINE_ENGINES", '[{"name": "b", "url": "http://127.0.0.1:2"}]')
    settings = load(tmp_path, "server: {port: 8000, keepalive_s: 3}\nengines: []")
    assert (settings.server.port, settings.server.keepalive_s) == (9000, 3)
    assert [engine.name for engine in settings.engines] == ["b"]


def test_the_file_named_by_a_variable_or_lying_here_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "paceline.yaml").write_text("server: {port: 1111}")
    (tmp_path / "other.yaml").write_text("server: {port: 2222}")
    assert load_settings().server.port == 1111
    monkeypatch.setenv("PACELINE_CONFIG", str(tmp_path / "other.yaml"))
    assert load_settings().server.port == 2222


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("server:\n  prt: 1", 2, "server.prt is not a setting\n    Did you mean `server.port`?"),
        ("port: 1", 1, "port is not a setting\n    Did you mean `server.port`?"),
        ("engines:\n- name: a\n  ulr: x", 3, "Did you mean `engines[0].url`?"),
        ("models:\n  m:\n    objektive: ttft", 3, "Did you mean `models.m.objective`?"),
        ("zzz: 1", 1, "Here stand: server, auth"),
    ],
)
def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_valid_one(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    message = refusal(tmp_path, text)
    assert f"paceline.yaml:{line}: " in message
    assert said in message


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("server:\n  port: abc", 2, "server.port is 'abc'"),
        ("server:\n  port: 70000", 2, "less than or equal to 65535"),
        ("engines:\n- name: no", 2, "put it in quotes"),
        ("engines: one", 1, "has to be a list"),
        ("server: 5", 1, "has to be a mapping"),
        ("routing:\n  objective: fast", 2, "'latency', 'ttft' or 'throughput'"),
        ("limits:\n  queue_timeout_s: .inf", 2, "finite"),
        ("engines:\n- name: a", 2, "needs 'url' (an engine that runs) or 'launch'"),
        ("engines:\n- {name: a, url: 'ftp://x'}", 2, "starts with http:// or https://"),
        ("engines:\n- {name: a, url: 'http://x', launch: {engine: ollama}}", 2, "both 'url'"),
        ("engines:\n- {name: a, launch: {engine: vllm}}", 2, "needs 'model'"),
        ("engines:\n- {name: a, kind: hosted}", 2, "needs 'models'"),
        ("engines:\n- {name: a, url: 'http://x'}\n- {name: a, url: 'http://y'}", 1, "more than once: a"),
        ("models:\n  a: {aliases: [b]}\n  b: {}", 1, "stands for both"),
        ("models:\n  a@int4: {}", 1, "starts a selector"),
        ("auth:\n  keys: [{name: a}]", 2, "needs either 'hash'"),
        ("server: {cors_origins: [chat.example.org]}", 1, "a scheme and a host"),
        ("server: {cors_origins: ['*']}", None, "every web page"),
        ("discovery: {ports: [0]}", 1, "from 1 to 65535"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line_and_what_to_write(
    tmp_path: Path, text: str, line: int | None, said: str
) -> None:
    message = refusal(tmp_path, text)
    assert said.lower() in message.lower()
    if line is not None:
        assert f"paceline.yaml:{line}: " in message


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, "server: {port: abc, prt: 1}\nlog: {level: loud}")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server: {port: 1\nlog: [", "paceline.yaml:"),
        ("server: {port: 1}\nserver: {}", "paceline.yaml:2 has 'server' a second time"),
        ("- a", "is not a mapping"),
        ("server:\n\tport: 1", "never tabs"),
        ("a: &a {b: *a}", "not a setting"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_an_empty_file_and_one_with_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    assert load(tmp_path, "").server.port == 7223
    assert load(tmp_path, "\ufeffserver: {port: 1}").server.port == 1


def test_a_file_that_is_absent_or_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"does not exist\n.*paceline init"):
        load_settings(tmp_path / "none.yaml")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"log: {level: \xff}")
    with pytest.raises(SettingsError, match="UTF-8"):
        load_settings(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PACELINE_SERVER__PORT", "abc", "$PACELINE_SERVER__PORT: server.port is 'abc'"),
        ("PACELINE_SERVER__PRT", "1", "Did you mean `server.port`?"),
        ("PACELINE_SERVER_PORT", "1", "Did you mean `PACELINE_SERVER__PORT`?"),
        ("PACELINE_WHATEVER", "1", "$PACELINE_WHATEVER names no setting"),
        ("PACELINE_ENGINES", "[{", "$PACELINE_ENGINES is not valid JSON"),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert said in str(caught.value)


def test_variables_of_kubernetes_and_of_keys_are_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PACELINE_SERVICE_HOST": "10.0.0.1",
        "PACELINE_SERVICE_PORT_HTTP": "7223",
        "PACELINE_PORT": "tcp://10.0.0.1:7223",
        "PACELINE_PORT_7223_TCP_ADDR": "10.0.0.1",
        "PACELINE_KEY_ALICE": "a-long-enough-key-for-alice",
    }.items():
        monkeypatch.setenv(name, value)
    settings = load(tmp_path, "auth: {keys: [{name: alice, env: PACELINE_KEY_ALICE}]}")
    assert settings.server.port == 7223


def test_a_key_variable_that_is_not_set_is_a_problem_at_start(tmp_path: Path) -> None:
    message = refusal(tmp_path, "engines: [{name: a, url: 'http://x', api_key_env: NOT_THERE}]")
    assert "engines[0].api_key_env names the variable NOT_THERE, which is not set" in message


SECRET = "hunter2-hunter2-hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"auth: {SECRET}",
        f"auth: {{keys: [{SECRET}]}}",
        f"auth: {{keys: [{{name: a, hash: {SECRET}}}]}}",
        f"engines: [{{name: a, api_key: [{SECRET}]}}]",
        f"engines: [{{name: a, url: 'http://user:{SECRET}@x'}}]",
        f"engines: [{{name: a, url: 'xttp://user:{SECRET}@x'}}]",
        f"engines: [{{name: a, launch: {{engine: ollama, env: [{SECRET}]}}}}]",
        f"engines: [{{name: a, api_key: *{SECRET}}}]",
        f"engines: [{{name: a, api_key: !{SECRET}}}]",
        f"engines: [{{name: a, api_key: '{SECRET}\n",
        f"server: {{port: {{a: {SECRET}}}}}",
    ],
)
def test_no_error_repeats_what_may_be_a_secret(tmp_path: Path, text: str) -> None:
    message = refusal(tmp_path, text)
    assert "paceline.yaml:" in message
    assert SECRET not in message


def test_settings_do_not_show_the_secrets_that_they_hold(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        f"""
        engines:
        - {{name: a, url: 'http://x', api_key: {SECRET}, options: {{token: {SECRET}}}}}
        - {{name: b, launch: {{engine: ollama, env: {{HF_TOKEN: {SECRET}}}}}}}
        """,
    )
    assert SECRET not in repr(settings)
    assert settings.engines[0].key() == SECRET
    assert list(settings.secrets()).count(SECRET) == 2


def test_an_engines_key_can_come_from_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    settings = load(tmp_path, "engines: [{name: a, url: 'http://x', api_key_env: VLLM_API_KEY}]")
    assert settings.engines[0].key() == SECRET


def test_settings_are_frozen() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.server.port = 1  # type: ignore[misc]
    with pytest.raises(ValidationError):
        settings.server = settings.server  # type: ignore[misc]


def test_the_data_folder_is_the_users_and_understands_the_home_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("sys.platform", "linux")
    assert Settings().data_dir == tmp_path / "data" / "paceline"
    monkeypatch.setattr("sys.platform", "darwin")
    assert Settings().data_dir == tmp_path / "Library" / "Application Support" / "Paceline"
    assert load(tmp_path, "data_dir: ~/records").data_dir == tmp_path / "records"
