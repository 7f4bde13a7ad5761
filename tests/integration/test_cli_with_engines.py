"""The real command beside engines that answer: with a running Paceline, and without one."""

from __future__ import annotations

import json
import urllib.request

from engines.scripted import ScriptedEngine
from shell import LIMIT_S, Shell

from gateway.keys import hash_key, new_key
from gateway.settings import load_settings

ENGINE_KEY = "engine-key-hunter2-hunter2"


def generated(engine: ScriptedEngine) -> list[str]:
    """The requests for which a model would have had to write something."""
    return [request.path for request in engine.requests if request.path.endswith("/completions")]


def configuration(engine: ScriptedEngine, more: str = "") -> str:
    return f"engines: [{{name: near, url: '{engine.url}'}}]\nrouting: {{measure_at_start: false}}\n{more}"


def test_up_prints_what_it_found_serves_it_and_stops_on_sigterm(shell: Shell, engine: ScriptedEngine) -> None:
    shell.configure(configuration(engine))
    running = shell.up()
    (found,) = running.said["deployments"]
    assert (found["model"], found["engine"], found["precision"]) == ("tiny", "llamacpp", "int4")
    assert [model["id"] for model in running.get("/v1/models")["data"]] == ["tiny"]
    assert running.stop() == 0


def test_models_and_explain_ask_the_gateway_that_runs(shell: Shell, engine: ScriptedEngine) -> None:
    shell.configure(configuration(engine))
    running = shell.up()
    models = json.loads(shell.run("models", "--json", "--url", running.url).stdout)
    assert models["source"] == running.url
    assert models["deployments"][0]["id"] == "near"
    told = shell.run("explain", "hello", "--model", "tiny@int4", "--url", running.url)
    assert told.returncode == 0
    assert told.stdout.startswith("near: ")
    assert generated(engine) == []


def test_without_a_gateway_the_engines_themselves_are_asked_and_no_model_is_sent_anything(
    shell: Shell, engine: ScriptedEngine
) -> None:
    shell.configure(configuration(engine, "server: {port: 1}"))
    models = shell.run("models")
    assert models.returncode == 0, models.stderr
    assert "near" in models.stdout
    assert "No Paceline is running" in models.stdout
    told = json.loads(shell.run("explain", "hello", "--model", "tiny", "--json").stdout)
    assert told["chosen"] == "near"
    assert told["reason"]
    assert generated(engine) == []


def test_explain_says_of_an_unknown_model_what_there_is(shell: Shell, engine: ScriptedEngine) -> None:
    shell.configure(configuration(engine, "server: {port: 1}"))
    told = shell.run("explain", "hello", "--model", "tinny")
    assert told.returncode == 1
    assert "Did you mean 'tiny'?" in told.stderr


def test_an_operators_commands_need_the_key_when_there_is_one(shell: Shell, engine: ScriptedEngine) -> None:
    key = new_key()
    shell.configure(configuration(engine, f"auth: {{keys: [{{name: a, hash: '{hash_key(key)}', admin: true}}]}}"))
    running = shell.up()
    refused = shell.run("models", "--url", running.url)
    assert refused.returncode == 1
    assert "PACELINE_KEY" in refused.stderr
    assert "near" in shell.run("models", "--url", running.url, PACELINE_KEY=key).stdout


def test_another_server_at_the_address_is_not_taken_for_paceline(shell: Shell, engine: ScriptedEngine) -> None:
    done = shell.run("models", "--url", engine.url)
    assert done.returncode == 1
    assert "not Paceline" in done.stderr


def test_init_writes_a_file_that_says_what_runs_and_loads_again(shell: Shell, engine: ScriptedEngine) -> None:
    ports = json.dumps([engine.port])
    done = shell.run("init", "--output", "made.yaml", PACELINE_DISCOVERY__PORTS=ports)
    assert done.returncode == 0, done.stderr
    text = (shell.folder / "made.yaml").read_text()
    assert "tiny.gguf: int4 Q4_K_M" in text
    settings = load_settings(shell.folder / "made.yaml")
    assert [written.url for written in settings.engines] == [engine.url]
    assert settings.engines[0].models == {"tiny.gguf": "tiny"}
    assert shell.up("--config", "made.yaml").said["deployments"][0]["model"] == "tiny"


def test_init_without_engines_writes_a_file_with_examples(shell: Shell) -> None:
    done = shell.run("init", PACELINE_DISCOVERY__PORTS="[1]")
    assert done.returncode == 0, done.stderr
    assert "# engines:" in (shell.folder / "paceline.yaml").read_text()
    assert load_settings(shell.folder / "paceline.yaml").engines == ()


def test_doctor_finds_nothing_to_fix_where_all_is_well(shell: Shell, engine: ScriptedEngine) -> None:
    shell.configure(configuration(engine, "server: {port: 0}"))
    done = shell.run("doctor")
    assert done.returncode == 0, done.stdout
    assert "near: tiny.gguf runs int4 Q4_K_M (says engine)" in done.stdout
    assert generated(engine) == []


def test_doctor_says_of_each_fault_what_to_do(shell: Shell, engine: ScriptedEngine) -> None:
    shell.configure(
        f"""
        server: {{port: {engine.port}}}
        engines:
        - {{name: wrong, url: '{engine.url}', precision: fp16}}
        - {{name: absent, url: 'http://127.0.0.1:1', api_key: {ENGINE_KEY}}}
        - {{name: own, launch: {{engine: llamacpp, model: none.gguf, binary: /no/llama-server}}}}
        """
    )
    done = shell.run("doctor", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert not report["ok"]
    to_fix = {finding["what"]: finding["todo"] for finding in report["findings"] if finding["level"] == "fix"}
    assert all(to_fix.values())
    for said in (f":{engine.port} is taken", "configured as fp16 and runs int4", "absent cannot be used", "none.gguf"):
        assert any(said in what for what in to_fix), said
    assert ENGINE_KEY not in done.stdout + done.stderr


def test_no_output_of_a_running_gateway_has_a_secret_in_it(shell: Shell, engine: ScriptedEngine) -> None:
    key = new_key()
    shell.configure(
        f"""
        auth: {{keys: [{{name: a, hash: '{hash_key(key)}', admin: true}}]}}
        log: {{level: debug, access: true}}
        routing: {{measure_at_start: false}}
        engines:
        - {{name: near, url: '{engine.url}', api_key: {ENGINE_KEY}}}
        - {{name: absent, url: 'http://127.0.0.1:1', api_key: {ENGINE_KEY}}}
        """
    )
    running = shell.up()
    authorization = f"Bearer {key}"
    answers = [running.get(path, authorization=authorization) for path in ("/v1/models", "/admin/fleet", "/ready")]
    request = urllib.request.Request(
        running.url + "/v1/chat/completions",
        data=json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode(),
        headers={"authorization": authorization, "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        answers.append({"body": json.load(answer), "headers": dict(answer.headers)})
    assert engine.requests[-1].headers["authorization"] == f"Bearer {ENGINE_KEY}"
    assert running.stop() == 0
    everything = json.dumps(answers) + json.dumps(running.said) + running.log.read_text()
    assert "near" in everything
    assert ENGINE_KEY not in everything
    assert key not in everything


def test_up_says_who_has_the_port(shell: Shell, engine: ScriptedEngine) -> None:
    shell.configure(configuration(engine))
    done = shell.run("up", "--port", str(engine.port))
    assert done.returncode == 1
    assert "--port takes another" in done.stderr
    assert "Traceback" not in done.stderr
