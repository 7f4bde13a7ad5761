"""What is counted, as Prometheus reads it: the right numbers, however many names callers make up."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from engines.scripted import ScriptedEngine
from engines.scripts import chat, status
from fleets import samples
from gateways import Gateway, chat_body, engine_at
from prometheus import Prometheus, needed
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from gateway.keys import hash_key

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

CHAT = "/v1/chat/completions"
DEPLOY = Path(__file__).parents[2] / "deploy"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ADMIN, USER = "sk-pl-the-admins-key-0001", "sk-pl-a-users-key-00001"
KEYS = {
    "keys": [
        {"name": "ops", "hash": hash_key(ADMIN), "admin": True},
        {"name": "someone", "hash": hash_key(USER)},
    ]
}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], Any]


async def scrape(running: Gateway, **headers: str) -> str:
    async with running.client() as client:
        answer = await client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    return answer.text


async def post(running: Gateway, *bodies: dict[str, Any], **headers: str) -> list[Any]:
    async with running.client() as client:
        return [await client.post(CHAT, json=body, headers=headers) for body in bodies]


def values(page: str) -> dict[str, dict[str, float]]:
    """Each sample's value by its name and by its labels as text, without empty ones."""
    found: dict[str, dict[str, float]] = {}
    for family in plain_text(page):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if v)
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def test_requests_calls_and_tokens_are_counted_by_where_they_went_and_how_they_ended(
    scripted: Scripted, gateway: Start
) -> None:
    broken, good = scripted(kind="vllm"), scripted(kind="vllm")
    broken.always(status(500))
    good.always(chat(["a", "b", "c"], prompt_tokens=11, cached_tokens=4))
    running = gateway(engines=[engine_at(broken, "a"), engine_at(good, "b")])
    await post(running, chat_body(), **{"x-paceline-deployment": "a"})
    await post(running, *[chat_body(stream=True)] * 3)
    found = values(await scrape(running))
    where = "engine=vllm,model=m,operation=chat,outcome={},precision=unknown"
    done, failed = "deployment=b," + where.format("done"), "deployment=a," + where.format("failed")
    assert found["paceline_request_duration_seconds_count"] == {done: 3, failed: 1}
    assert found["paceline_request_ttft_seconds_count"][done] == 3
    assert found["paceline_request_tpot_seconds_count"][done] == 3
    assert found["paceline_overhead_seconds_count"] == {done: 3, failed: 1}
    calls = found["paceline_call_duration_seconds_count"]
    assert calls[done] == 3
    assert calls["deployment=a," + where.format("broken")] == 3
    tokens = {
        kind: found["paceline_call_tokens_total"][f"{done},token_type={kind}"] for kind in ("input", "cached", "output")
    }
    assert tokens == {"input": 33, "cached": 12, "output": 9}
    assert sum(found["paceline_route_decisions_total"].values()) == 4
    assert found["paceline_cache_requests_total"] == {"model=m,result=off": 4}
    assert found["paceline_engine_up"] == {"endpoint=a": 1, "endpoint=b": 1}
    assert set(found["paceline_inflight"].values()) == {0}
    assert found["paceline_queue_depth"] == {"": 0}


def measured(running: Gateway) -> Gateway:
    """Give every deployment a measurement."""
    for deployment in running.house.fleet.deployments:
        running.call(running.house.fleet.learned.measured, deployment, samples(1000.0, 100.0))
    return running


async def test_how_far_off_a_prediction_was_is_a_part_of_what_was_predicted(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="vllm")
    engine.always(chat(["x"] * 20, prompt_tokens=500))
    running = measured(gateway(engines=[engine_at(engine, "a")]))
    await post(running, *[chat_body("word " * 400, max_tokens=20, stream=True)] * 3)  # half a second is predicted
    found = values(await scrape(running))
    where = "deployment=a,engine=vllm,model=m,operation=chat,precision=unknown,stage="
    assert found["paceline_route_prediction_error_ratio_count"] == {f"{where}ttft": 3, f"{where}total": 3}
    buckets = found["paceline_route_prediction_error_ratio_bucket"]
    # An engine that answers at once is off by nearly all of what was predicted, and never by more than that.
    assert buckets[where.replace("model", "le=1.0,model") + "ttft"] == 3


async def test_repeated_requests_are_counted_as_hits_with_what_they_saved(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="vllm")
    engine.always(chat(["a", "b"], prompt_tokens=7))
    running = gateway(engines=[engine_at(engine, "a")], cache={"mode": "all"})
    await post(running, *[chat_body()] * 3)
    found = values(await scrape(running))
    assert found["paceline_cache_requests_total"] == {"model=m,result=miss": 1, "model=m,result=hit": 2}
    assert found["paceline_cache_saved_tokens_total"] == {"kind=prompt,model=m": 14, "kind=output,model=m": 4}


async def test_a_breaker_that_opened_is_seen(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="vllm")
    engine.always(status(500))
    running = gateway(engines=[engine_at(engine, "a")])
    await post(running, *[chat_body()] * 3)
    found = values(await scrape(running))
    where = "deployment=a,engine=vllm,model=m,precision=unknown"
    assert found["paceline_breaker_state"] == {where: 2}
    assert found["paceline_deployment_up"] == {where: 0}


async def test_requests_refused_before_they_are_read_are_counted_by_what_was_wrong_with_them(
    scripted: Scripted, gateway: Start
) -> None:
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], auth=KEYS, server={"max_body_bytes": 2000})
    bearer, admin = {"authorization": f"Bearer {USER}"}, {"authorization": f"Bearer {ADMIN}"}
    async with running.client() as client:
        answers = [
            await client.post(CHAT, json=chat_body(), headers={"authorization": "Bearer wrong"}),
            await client.post(CHAT, json=chat_body("long " * 1000), headers=bearer),
            await client.post(CHAT, content=b"{", headers=bearer),
            await client.post("/v1/embeddings", content=b"{", headers=bearer),
            await client.get(CHAT, headers=bearer),
            await client.post(CHAT, json=chat_body(), headers={**bearer, "x-paceline-stage": "?"}),
            await client.post(CHAT, json=chat_body(model="nobody"), headers=bearer),
            await client.post(CHAT, json=chat_body(), headers=bearer),
        ]
    assert [each.status_code for each in answers] == [401, 413, 400, 400, 405, 400, 404, 200]
    found = values(await scrape(running, **admin))["paceline_request_refusals_total"]
    assert found == {
        "operation=chat,reason=invalid_api_key,status=401": 1,
        "operation=chat,reason=body_too_large,status=413": 1,
        "operation=chat,status=400": 2,
        "operation=embeddings,status=400": 1,
        "operation=chat,status=405": 1,
        "operation=chat,reason=model_not_found,status=404": 1,
    }


async def test_a_thousand_strange_models_and_keys_make_no_new_series(scripted: Scripted, gateway: Start) -> None:
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], auth=KEYS)
    bearer = {"authorization": f"Bearer {USER}"}
    admin = {"authorization": f"Bearer {ADMIN}"}
    first = await post(running, chat_body(), chat_body(model="no such model"), **bearer)
    first += await post(running, chat_body(), authorization="Bearer nobody's")
    assert [each.status_code for each in first] == [200, 404, 401]
    before = values(await scrape(running, **admin))
    async with running.client() as client:
        for number in range(1000):
            strange = f"model-{number}\n{{}}\"'\\ü"
            answer = await client.post(CHAT, json=chat_body(model=strange, user=f"u{number}"), headers=bearer)
            assert answer.status_code == 404
            answer = await client.post(CHAT, json=chat_body(), headers={"authorization": f"Bearer key-{number:020d}"})
            assert answer.status_code == 401
    after = values(await scrape(running, **admin))
    assert {name: each.keys() for name, each in after.items()} == {name: each.keys() for name, each in before.items()}
    unknown = "model=(unknown),operation=chat,outcome=refused"
    assert after["paceline_request_duration_seconds_count"][unknown] == 1001
    assert "someone" not in json.dumps(list(after.values()))


async def test_metrics_are_for_an_admins_key_and_can_be_off(scripted: Scripted, gateway: Start) -> None:
    locked = gateway(engines=[engine_at(scripted(), "a")], auth=KEYS)
    off = gateway(engines=[engine_at(scripted(), "a")], telemetry={"metrics": False})
    async with locked.client() as client:
        keys = ({}, {"authorization": f"Bearer {USER}"}, {"authorization": f"Bearer {ADMIN}"})
        assert [(await client.get("/metrics", headers=each)).status_code for each in keys] == [401, 403, 200]
    async with off.client() as client:
        assert (await client.get("/metrics")).status_code == 404


async def test_openmetrics_has_exemplars_that_name_the_requests_trace(scripted: Scripted, gateway: Start) -> None:
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], telemetry={"console": True, "sample": 0.0})
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await post(running, chat_body(stream=True))
    await post(running, chat_body(stream=True), traceparent=caller)
    page = await scrape(running, accept=OPENMETRICS)
    exemplars = [
        (sample.name, sample.exemplar.labels["trace_id"])
        for family in open_metrics(page)
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert {name for name, _ in exemplars} >= {
        "paceline_request_duration_seconds_bucket",
        "paceline_request_ttft_seconds_bucket",
        "gen_ai_client_token_usage_bucket",
    }
    assert {trace for _, trace in exemplars} == {caller.split("-")[1]}


async def test_promtool_finds_nothing_to_improve(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental/dup")
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], cache={"mode": "all"})
    await post(running, *[chat_body(stream=True)] * 2)
    page = await scrape(running)
    checked = await asyncio.to_thread(run_promtool, "check", "metrics", text=page)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def run_promtool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [needed("promtool"), *arguments],
        cwd=DEPLOY / "prometheus",
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    rules = run_promtool("test", "rules", "paceline.rules.test.yml")
    assert rules.returncode == 0, rules.stdout + rules.stderr
    tested = yaml.safe_load((DEPLOY / "prometheus" / "paceline.rules.test.yml").read_text())["tests"]
    names = {each["alertname"] for test in tested for each in test["alert_rule_test"] if each.get("exp_alerts")}
    assert names == {rule["alert"] for rule in alert_rules()}


def alert_rules() -> list[dict[str, Any]]:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "paceline.rules.yml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def dashboard_queries() -> dict[str, str]:
    queries = {}
    for path in (DEPLOY / "grafana").glob("*.json"):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                queries[f"{path.stem}: {panel['title']} {target['refId']}"] = target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                inner = variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]
                queries[f"{path.stem}: ${variable['name']}"] = inner
    return queries


def all_queries() -> dict[str, str]:
    return {**dashboard_queries(), **{rule["alert"]: rule["expr"] for rule in alert_rules()}}


def plain(query: str) -> str:
    """A query as Prometheus takes it: with Grafana's variables filled in."""
    return re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", "1m"))


async def test_every_query_of_dashboards_and_alerts_names_metrics_and_labels_that_exist(
    scripted: Scripted, gateway: Start
) -> None:
    running = measured(
        gateway(engines=[engine_at(scripted(kind="vllm"), "a")], cache={"mode": "all"}, telemetry={"console": True})
    )
    await post(running, *[chat_body(stream=True)] * 2, chat_body(model="nobody"))
    labels: dict[str, set[str]] = {}
    for family in plain_text(await scrape(running)):
        for sample in family.samples:
            labels.setdefault(sample.name, {"instance", "job"}).update(sample.labels)
    assert len(all_queries()) > 30
    for where, query in all_queries().items():
        names = re.findall(r"\b(?:paceline|gen_ai|process)_\w+", query)
        assert names, where
        assert not [name for name in names if name not in labels], where
        known = set[str]().union(*(labels[name] for name in names))
        used = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
        used += [each.strip() for group in re.findall(r"(?:by|on) \(([^)]*)\)", query) for each in group.split(",")]
        assert set(used) <= known, where


async def test_a_real_prometheus_scrapes_and_answers_with_the_right_numbers(
    scripted: Scripted, gateway: Start, tmp_path: Path
) -> None:
    needed("prometheus")
    engine = scripted(kind="vllm")
    engine.always(chat(["a", "b", "c"], prompt_tokens=10))
    running = gateway(engines=[engine_at(engine, "a")], cache={"mode": "all"}, auth=KEYS, telemetry={"console": True})
    bodies = [chat_body(f"question {number % 4}", stream=True) for number in range(10)]
    prometheus = Prometheus(tmp_path, running.url, DEPLOY / "prometheus" / "paceline.rules.yml", ADMIN)
    try:
        answers = await post(running, *bodies, authorization=f"Bearer {USER}")
        assert {each.status_code for each in answers} == {200}
        prometheus.wait_for("sum(paceline_request_duration_seconds_count)", 10)
        assert prometheus.query('up{job="paceline"}').popitem()[1] == 1
        by_result = prometheus.query("sum by (result) (paceline_cache_requests_total)")
        assert by_result == {(("result", "miss"),): 4, (("result", "hit"),): 6}
        assert prometheus.query('sum(paceline_call_tokens_total{token_type="input"})') == {(): 40}
        assert prometheus.query('sum(paceline_call_tokens_total{token_type="output"})') == {(): 12}
        assert prometheus.query("sum(gen_ai_client_token_usage_sum)") == {(): 52}
        assert prometheus.query("sum(gen_ai_server_time_to_first_token_seconds_count)") == {(): 4}
        median = prometheus.query("histogram_quantile(0.5, sum by (le) (paceline_request_ttft_seconds_bucket))")[()]
        assert 0 < median < 80
        exemplars = prometheus.ask(
            "/query_exemplars", query="paceline_request_duration_seconds_bucket", start="0", end="9999999999"
        )
        assert {len(one["labels"]["trace_id"]) for each in exemplars for one in each["exemplars"]} == {32}
        for query in all_queries().values():
            prometheus.ask("/query", query=plain(query))
        rules = [rule for group in prometheus.ask("/rules")["groups"] for rule in group["rules"]]
        assert len(rules) == len(alert_rules())
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
    finally:
        prometheus.stop()


def test_the_collectors_configuration_uses_only_what_it_declares() -> None:
    config = yaml.safe_load((DEPLOY / "opentelemetry" / "collector.yaml").read_text())
    for pipeline in config["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(config[kind])
    assert {"grpc", "http"} == set(config["receivers"]["otlp"]["protocols"])
