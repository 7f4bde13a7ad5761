"""What clients see over HTTP: models, states, wrong requests, selectors, headers, the other operations, OpenAPI."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines.scripted import ScriptedEngine
from engines.scripts import chat
from engines.signals import Gate
from gateways import LIMIT_S, Gateway, chat_body, engine_at

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

CHAT_PATH = "/v1/chat/completions"
ERROR_FIELDS = {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    """A vLLM in bf16 with the model ``m``."""
    with ScriptedEngine(kind="vllm") as engine:
        yield engine


@pytest.fixture(scope="module")
def embedder() -> Iterator[ScriptedEngine]:
    """A vLLM with the embedding model ``e``."""
    with ScriptedEngine(kind="vllm", model="e") as engine:
        engine.capabilities = {"embeddings"}
        yield engine


@pytest.fixture(scope="module")
def quantised() -> Iterator[ScriptedEngine]:
    """A llama.cpp in int4 with the same model."""
    with ScriptedEngine(kind="llamacpp") as engine:
        yield engine


@pytest.fixture(scope="module")
def house(
    engine: ScriptedEngine,
    quantised: ScriptedEngine,
    embedder: ScriptedEngine,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    """One gateway for all tests here that change nothing in it."""
    gateway = Gateway(
        tmp_path_factory.mktemp("gateway"),
        engines=[
            engine_at(engine, "full", precision="bf16"),
            engine_at(quantised, "small"),
            {"name": "embedder", "url": embedder.url, "kind": "vllm"},
        ],
        models={"m": {"aliases": ["gpt-4o-mini"]}},
        server={"max_body_bytes": 4096},
    )
    yield gateway
    gateway.stop()


@pytest.fixture
def client(house: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=house.url, timeout=LIMIT_S) as client:
        yield client


def refusal(answer: httpx.Response, status: int) -> dict[str, Any]:
    """Return the error of an answer, which has to have this status and OpenAI's form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == ERROR_FIELDS
    return dict(error)


# Models and states


def test_the_model_list_has_each_logical_model_once_with_precisions_context_and_capabilities(
    client: httpx.Client,
) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    embeds, model = listed["data"]
    assert embeds["id"] == "e"
    assert embeds["paceline"]["capabilities"] == ["embeddings"]
    assert (model["id"], model["object"]) == ("m", "model")
    assert isinstance(model["created"], int)
    own = model["paceline"]
    assert own["precisions"] == ["bf16", "int4"]
    assert own["context"] == 2048
    assert {"chat", "completion", "tools"} <= set(own["capabilities"])
    assert {each["id"] for each in own["deployments"]} == {"full", "small"}
    assert client.get("/v1/models/m").json() == model


def test_an_alias_serves_and_is_told_under_its_own_name_to_whoever_asks_for_it(client: httpx.Client) -> None:
    assert client.get("/v1/models/gpt-4o-mini").json()["id"] == "gpt-4o-mini"
    assert client.get("/v1/models/gpt-4o-mini").json()["paceline"] == client.get("/v1/models/m").json()["paceline"]
    answer = client.post(CHAT_PATH, json=chat_body(model="gpt-4o-mini"))
    assert answer.json()["model"] == "gpt-4o-mini"


@pytest.mark.parametrize("path", ["/v1/models/mm", CHAT_PATH])
def test_an_unknown_model_is_404_and_names_what_was_probably_meant(client: httpx.Client, path: str) -> None:
    answer = client.get(path) if "models" in path else client.post(path, json=chat_body(model="mm"))
    error = refusal(answer, 404)
    assert error["code"] == "model_not_found"
    assert "'m'" in error["message"]


def test_a_models_name_may_have_slashes(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="vllm", model="org/family/model")
    running = gateway(engines=[{"name": "a", "url": engine.url, "models": {engine.model: "org/family/model"}}])
    with httpx.Client(base_url=running.url) as client:
        assert client.get("/v1/models/org/family/model").json()["id"] == "org/family/model"
        assert client.post(CHAT_PATH, json=chat_body(model="org/family/model")).status_code == 200
        assert client.post(CHAT_PATH, json=chat_body(model="org/family/model@vllm")).status_code == 200


def test_health_tells_the_version_and_ready_who_can_serve(client: httpx.Client) -> None:
    assert client.get("/health").json()["status"] == "ok"
    ready = client.get("/ready")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "deployments": ["embedder", "full", "small"]})


def test_without_an_engine_it_lives_and_is_not_ready(gateway: Start) -> None:
    running = gateway(engines=[{"name": "gone", "url": "http://127.0.0.1:1", "kind": "vllm"}])
    with httpx.Client(base_url=running.url) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 503
        error = refusal(client.post(CHAT_PATH, json=chat_body()), 404)
    assert "doctor" in error["message"]


# Wrong requests


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_another_method_is_405_and_says_which_one_it_takes(client: httpx.Client, method: str) -> None:
    answer = client.request(method, CHAT_PATH)
    assert "POST" in refusal(answer, 405)["message"]
    assert answer.headers["allow"] == "POST"
    refusal(client.request(method if method != "GET" else "PATCH", "/v1/models"), 405)


def test_a_client_that_wants_a_websocket_is_told_that_there_is_none(client: httpx.Client) -> None:
    wants = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "a"}
    answer = client.get("/v1/realtime", headers=wants)
    assert answer.status_code == 400
    assert "no WebSockets" in answer.json()["error"]["message"]


def test_an_unknown_path_is_404_in_openais_form(client: httpx.Client) -> None:
    assert "/v1/nothing" in refusal(client.post("/v1/nothing"), 404)["message"]


def test_a_body_that_is_too_large_is_413_by_its_length_and_by_what_arrives(client: httpx.Client) -> None:
    by_length = refusal(client.post(CHAT_PATH, content=b" " * 5000), 413)
    assert "4096" in by_length["message"]
    assert by_length["code"] == "body_too_large"
    chunked = client.post(CHAT_PATH, content=iter([b" " * 3000, b" " * 3000]))
    assert refusal(chunked, 413) == by_length


def test_a_body_in_pieces_is_one_body(client: httpx.Client) -> None:
    body = json.dumps(chat_body()).encode()
    assert client.post(CHAT_PATH, content=iter([body[:10], body[10:]])).status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b'{"model": "m", oops}', "byte 15"),
        (b'{"model": "m"', "not valid JSON"),
        (b'["m"]', "JSON object"),
        (b'"m"', "JSON object"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\xc3"}]}', "not valid JSON"),
        (b'{"model": ' + b"[" * 2000 + b"]" * 2000 + b"}", "recursion"),
        (b'{"model": "m", "messages": ' + b"[" * 1900 + b"]" * 1900 + b"}", "recursion"),
    ],
    ids=[
        "empty",
        "syntax",
        "cut",
        "array",
        "string",
        "utf-8 in the model",
        "utf-8 in a message",
        "deep model",
        "deep messages",
    ],
)
def test_a_body_that_cannot_be_read_is_400_and_says_where(client: httpx.Client, body: bytes, said: str) -> None:
    error = refusal(client.post(CHAT_PATH, content=body), 400)
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 7),
        ("model", ""),
        ("model", None),
        ("messages", "hi"),
        ("messages", []),
        ("messages", [{"content": "no role"}]),
        ("messages", [{"role": "user", "content": [{"text": "no type"}]}]),
        ("messages", None),
        ("stream", "yes"),
        ("stream_options", True),
        ("max_tokens", "many"),
        ("max_tokens", 0),
        ("max_completion_tokens", 1.5),
        ("n", 0),
        ("n", "two"),
        ("tools", {}),
        ("tool_choice", 3),
        ("response_format", "json"),
        ("logprobs", "yes"),
    ],
)
def test_a_field_of_the_wrong_type_is_400_and_named(client: httpx.Client, field: str, value: object) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    body = {**chat_body(), **({"tools": tools} if field == "tool_choice" else {}), field: value}
    error = refusal(client.post(CHAT_PATH, json=body), 400)
    assert error["param"].split("[")[0] == field
    assert field in error["message"]


@pytest.mark.parametrize(("path", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")])
def test_the_other_operations_name_their_field(client: httpx.Client, path: str, field: str) -> None:
    for wrong in ({}, {field: None}, {field: 7}, {field: {}}):
        assert refusal(client.post(path, json={"model": "m", **wrong}), 400)["param"] == field


def test_a_wrong_request_reaches_no_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    before = len(engine.requests)
    client.post(CHAT_PATH, json=chat_body(n="two"))
    client.post(CHAT_PATH, content=b"{")
    assert len(engine.requests) == before


# Selectors, objective, pin


@pytest.mark.parametrize(
    ("selector", "deployment"),
    [
        ("bf16", "full"),
        ("bfloat16", "full"),
        ("BF16", "full"),
        ("int4", "small"),
        ("int8+", "full"),
        ("int4+", "full"),
        ("vllm", "full"),
        ("llamacpp", "small"),
        ("llama.cpp", "small"),
        ("Q4_K_M", "small"),
        ("small", "small"),
        ("full", "full"),
    ],
)
def test_a_selector_chooses(client: httpx.Client, selector: str, deployment: str) -> None:
    answer = client.post(CHAT_PATH, json=chat_body(model=f"m@{selector}"))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-paceline-deployment"] == deployment
    assert answer.json()["model"] == f"m@{selector}"


@pytest.mark.parametrize("selector", ["fp32", "fp32+", "ollama", "nobody"])
def test_a_selector_that_nobody_meets_is_400_that_says_why_for_each(client: httpx.Client, selector: str) -> None:
    error = refusal(client.post(CHAT_PATH, json=chat_body(model=f"m@{selector}")), 400)
    assert "full: " in error["message"]
    assert "small: " in error["message"]
    assert selector.rstrip("+") in error["message"]


def test_a_bare_name_takes_the_best_precision_there_is(client: httpx.Client) -> None:
    answer = client.post(CHAT_PATH, json=chat_body())
    assert answer.headers["x-paceline-deployment"] == "full"
    assert answer.headers["x-paceline-precision"] == "bf16"
    assert answer.headers["x-paceline-engine"] == "vllm"
    assert answer.headers["x-paceline-reason"]
    assert answer.headers["x-paceline-attempts"] == "1"


@pytest.mark.parametrize("objective", ["latency", "ttft", "throughput", "TTFT"])
def test_an_objective_is_taken(client: httpx.Client, objective: str) -> None:
    answer = client.post(CHAT_PATH, json=chat_body(), headers={"x-paceline-objective": objective})
    assert answer.status_code == 200


def test_an_unknown_objective_is_400_with_those_that_there_are(client: httpx.Client) -> None:
    error = refusal(client.post(CHAT_PATH, json=chat_body(), headers={"x-paceline-objective": "cheap"}), 400)
    assert error["param"] == "x-paceline-objective"
    for name in ("cheap", "latency", "ttft", "throughput"):
        assert name in error["message"]


def test_a_pin_beats_everything_and_an_unknown_one_is_400(client: httpx.Client) -> None:
    pinned = client.post(CHAT_PATH, json=chat_body(), headers={"x-paceline-deployment": "small"})
    assert pinned.headers["x-paceline-deployment"] == "small"
    unknown = client.post(CHAT_PATH, json=chat_body(), headers={"x-paceline-deployment": "smal"})
    message = refusal(unknown, 400)["message"]
    assert "'smal'" in message or "smal" in message
    assert "small" in message


# Headers in and out


def test_a_request_id_is_echoed_and_passed_on_and_made_where_there_is_none(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    given = client.post(CHAT_PATH, json=chat_body(), headers={"x-request-id": "from-the-client-1"})
    assert given.headers["x-request-id"] == "from-the-client-1"
    assert engine.requests[-1].headers["x-request-id"] == "from-the-client-1"
    made = [client.post(CHAT_PATH, json=chat_body()).headers["x-request-id"] for _ in range(3)]
    assert len(set(made)) == 3
    assert engine.requests[-1].headers["x-request-id"] == made[-1]
    refused = client.post(CHAT_PATH, content=b"{", headers={"x-request-id": "from-the-client-2"})
    assert refused.headers["x-request-id"] == "from-the-client-2"


@pytest.mark.parametrize("odd", ["with a blank", "x" * 129, "tab\there", "ünï".encode().decode("latin-1")])
def test_an_odd_request_id_is_replaced(client: httpx.Client, engine: ScriptedEngine, odd: str) -> None:
    answer = client.post(CHAT_PATH, json=chat_body(), headers=[(b"x-request-id", odd.encode("latin-1"))])
    assert answer.headers["x-request-id"] not in ("", odd)
    assert engine.requests[-1].headers["x-request-id"] == answer.headers["x-request-id"]


def test_a_trace_is_passed_on_and_nothing_else_of_the_clients_headers(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    trace = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=1",
        "baggage": "user=7",
    }
    private = {"cookie": "session=private", "x-forwarded-for": "10.1.2.3", "authorization": "Bearer mine-alone-1234"}
    client.post(CHAT_PATH, json=chat_body(), headers={**trace, **private})
    received = engine.requests[-1].headers
    assert trace.items() <= received.items()
    assert not private.keys() & received.keys()


def test_server_timing_says_where_the_time_went(client: httpx.Client) -> None:
    whole = client.post(CHAT_PATH, json=chat_body())
    names = [part.split(";")[0].strip() for part in whole.headers["server-timing"].split(",")]
    assert names[0] == "route"
    assert names[-1] == "upstream"
    for part in whole.headers["server-timing"].split(","):
        assert float(part.partition("dur=")[2]) >= 0


# The other operations


def test_completions_come_whole_and_as_a_stream(client: httpx.Client, engine: ScriptedEngine) -> None:
    body = {"model": "m", "prompt": "Once", "max_tokens": 3}
    whole = client.post("/v1/completions", json=body)
    assert whole.json()["choices"][0]["text"] == "Hello!"
    assert whole.json()["model"] == "m"
    streamed = client.post("/v1/completions", json={**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "Hello!"
    assert {chunk["model"] for chunk in chunks} == {"m"}
    assert engine.requests[-1].path == "/v1/completions"
    assert engine.requests[-1].json["prompt"] == "Once"


def test_completions_take_prompts_in_every_form(client: httpx.Client, engine: ScriptedEngine) -> None:
    for prompt in ("one", ["one", "two"], [1, 2, 3], [[1, 2], [3]]):
        assert client.post("/v1/completions", json={"model": "m", "prompt": prompt}).status_code == 200
        assert engine.requests[-1].json["prompt"] == prompt


def test_embeddings_go_through_one_and_many_with_their_options(client: httpx.Client, embedder: ScriptedEngine) -> None:
    one = client.post("/v1/embeddings", json={"model": "e", "input": "hi"})
    assert [each["embedding"] for each in one.json()["data"]] == [[0.5, -0.25]]
    many = client.post(
        "/v1/embeddings",
        json={"model": "e", "input": ["a", "b", "c"], "encoding_format": "float", "dimensions": 2, "stream": True},
    )
    assert [each["index"] for each in many.json()["data"]] == [0, 1, 2]
    assert many.json()["model"] == "e"
    assert many.json()["usage"]["prompt_tokens"] == 5
    sent = embedder.requests[-1].json
    assert (sent["encoding_format"], sent["dimensions"], sent["input"]) == ("float", 2, ["a", "b", "c"])
    assert many.headers["x-paceline-deployment"] == "embedder"


def test_embeddings_go_only_where_they_are(client: httpx.Client) -> None:
    error = refusal(client.post("/v1/embeddings", json={"model": "m", "input": "hi"}), 400)
    assert "small: " in error["message"]
    assert "embeddings" in error["message"]


# CORS


PREFLIGHT = {
    "origin": "https://chat.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type",
}


def test_no_page_is_allowed_in_unless_it_is_configured(client: httpx.Client) -> None:
    answer = client.options(CHAT_PATH, headers=PREFLIGHT)
    assert answer.status_code >= 400
    assert "access-control-allow-origin" not in answer.headers


def test_a_configured_page_may_ask_first_call_and_read_our_headers(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="vllm")
    running = gateway(engines=[engine_at(engine, "a")], server={"cors_origins": ["https://chat.example"]})
    with httpx.Client(base_url=running.url) as client:
        asked = client.options(CHAT_PATH, headers=PREFLIGHT)
        called = client.post(CHAT_PATH, json=chat_body(stream=True), headers={"origin": "https://chat.example"})
        other = client.options(CHAT_PATH, headers={**PREFLIGHT, "origin": "https://evil.example"})
    assert asked.status_code == 200
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "authorization" in asked.headers["access-control-allow-headers"].lower()
    assert called.headers["access-control-allow-origin"] == "https://chat.example"
    assert "access-control-expose-headers" in called.headers
    assert "[DONE]" in called.text
    assert other.headers.get("access-control-allow-origin") != "https://evil.example"


# OpenAPI


def test_the_page_for_people_needs_no_foreign_network(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert '"openapi.json"' in page.text
    assert "//" not in page.text.replace("<!--", "")
    assert client.get("/redoc").status_code == 404


def test_the_openapi_description_has_every_path_and_holds_together(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()
    assert described["openapi"].startswith("3.")
    headers = {each["name"] for each in described["paths"]["/v1/chat/completions"]["post"]["parameters"]}
    assert headers >= {"x-paceline-stage", "baggage"}
    assert described["info"]["title"] == "Paceline"
    assert {
        CHAT_PATH,
        "/v1/completions",
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/{name}",
        "/health",
        "/ready",
        "/admin/fleet",
        "/admin/explain",
    } <= set(described["paths"])
    operations = [
        (path, method, operation) for path, item in described["paths"].items() for method, operation in item.items()
    ]
    ids = [operation["operationId"] for _, _, operation in operations]
    assert len(ids) == len(set(ids))
    for path, _, operation in operations:
        assert operation["responses"], path
        assert operation["summary"], path
        named = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}
        assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}, path
    for reference in _references(described):
        found: Any = described
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
    chat_operation = described["paths"][CHAT_PATH]["post"]
    schema = chat_operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["model", "messages"]
    assert schema["additionalProperties"] is True
    assert client.get("/docs").status_code == 200


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


# What an engine streams is told to be a stream only to those who asked for one


def test_a_stream_is_marked_so_that_no_proxy_holds_it_back(
    client: httpx.Client, engine: ScriptedEngine, tmp_path: Path
) -> None:
    gate = Gate()
    engine.next(chat(gate=gate))
    with client.stream("POST", CHAT_PATH, json=chat_body(stream=True)) as answer:
        gate.open()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-paceline-deployment"] == "full"
        answer.read()
