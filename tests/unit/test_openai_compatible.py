"""Engines without an adapter of their own: recognised by what they answer, offered what they can be relied on to do.

MLX's answers are recorded, those of the others scripted from their documentation.
"""

from __future__ import annotations

import json

import pytest
from engines.answers import call, events, read_all, text_of
from engines.recorded import recorded
from engines.scripted import ScriptedEngine
from engines.scripts import hang, pieces, status, text, whole

from adapters.base import Adapter, Endpoint
from adapters.discover import recognise
from adapters.errors import Broken, Interrupted, Rejected, TimedOut, Unreachable
from adapters.registry import create
from policies.types import Capability, Operation, Precision

PLAIN = {Capability.CHAT, Capability.COMPLETION}
SGLANG = {"model_path": "/m", "tp_size": 1, "version": "0.5.2", "dtype": "bfloat16", "quantization": "awq"}
TGI = {"model_id": "m", "model_dtype": "float16", "max_total_tokens": 4096, "version": "3.2.0", "quantize": None}


def models(owned_by: str, **card: object) -> dict[str, object]:
    return {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owned_by, **card}]}


ROUTES = {
    "vllm": {"GET /v1/models": whole(models("vllm"))},
    "llamacpp": {"GET /v1/models": whole(models("llamacpp"))},
    "sglang": {"GET /v1/models": whole(models("sglang", max_model_len=8192)), "GET /get_server_info": whole(SGLANG)},
    "tgi": {"GET /v1/models": whole(models("m")), "GET /info": whole(TGI)},
    "trtllm": {"GET /v1/models": whole(models("tensorrt_llm")), "GET /version": whole({"version": "1.0.0"})},
    "llamafile": {
        "GET /v1/models": whole(models("llamacpp"), headers={"server": "llamafile/0.9.3"}),
        "GET /props": whole({"default_generation_settings": {"n_ctx": 8192}, "model_ftype": "Q8_0"}),
    },
    "koboldcpp": {
        "GET /v1/models": whole(models("koboldcpp")),
        "GET /api/extra/version": whole({"result": "KoboldCpp", "version": "1.95"}),
        "GET /api/extra/true_max_context_length": whole({"value": 4096}),
    },
    "lmstudio": {"GET /v1/models": whole(models("organization_owner"))},
    "ollama": {
        "GET /v1/models": whole({"object": "list", "data": None}),
        "GET /api/version": recorded("ollama/0.32/version"),
    },
    "openai": {"GET /v1/models": whole(models("someone"))},
}


def engine_of(scripted, kind: str) -> ScriptedEngine:
    """A scripted engine of a kind, which answers 404 to all that it does not have."""
    engine: ScriptedEngine = scripted(http10=kind == "mlx")
    if kind == "mlx":
        server = {"server": "BaseHTTP/0.6 Python/3.11.7"}
        engine.routes = {
            "GET /v1/models": text("", headers=server),
            "GET /health": whole({"status": "ok"}, headers=server),
        }
    else:
        engine.routes = dict(ROUTES[kind])
    engine.always(status(404))
    return engine


@pytest.mark.parametrize("kind", [*ROUTES, "mlx"])
async def test_the_kind_is_told_from_the_answers(scripted, kind: str) -> None:
    engine = engine_of(scripted, kind)
    assert await recognise(engine.url) == kind
    assert await recognise(f"{engine.url}/v1/") == kind


async def test_llama_cpp_is_recognised_while_it_loads(scripted) -> None:
    engine = scripted()
    loading = {"error": {"message": "Loading model", "code": 503}}
    engine.routes = {"GET /v1/models": whole(loading, 503, {"server": "llama.cpp"})}
    assert await recognise(engine.url) == "llamacpp"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (text("<html>It works!</html>"), "not as an engine"),
        (status(401), "wants a key"),
        (whole(models("paceline")), "Paceline itself"),
    ],
)
async def test_what_is_no_engine_is_refused_with_the_reason(scripted, script, message: str) -> None:
    engine = scripted()
    engine.routes = {"GET /v1/models": script}
    engine.always(status(404))
    with pytest.raises(Broken, match=message):
        await recognise(engine.url)


async def test_an_engine_behind_a_key_is_recognised_with_it(scripted) -> None:
    engine = engine_of(scripted, "vllm")
    assert await recognise(engine.url, api_key="k") == "vllm"
    assert engine.watched[0].headers["authorization"] == "Bearer k"


async def test_recognising_waits_no_longer_than_its_limit(scripted) -> None:
    engine = scripted()
    engine.routes = {"GET /v1/models": hang()}
    with pytest.raises(TimedOut):
        await recognise(engine.url, limit_s=0.05)
    engine.stop()
    with pytest.raises(Unreachable):
        await recognise(engine.url)


@pytest.fixture
async def adapter_for(scripted):
    opened: list[Adapter] = []

    def make(kind: str, created_as: str | None = None, **options: object) -> tuple[Adapter, ScriptedEngine]:
        engine = engine_of(scripted, kind)
        opened.append(create(created_as or kind, Endpoint("here", engine.url, **options)))  # type: ignore[arg-type]
        return opened[-1], engine

    yield make
    for adapter in opened:
        await adapter.aclose()


@pytest.mark.parametrize(
    ("kind", "label", "version", "precision", "scheme", "context", "slots"),
    [
        ("sglang", "SGLang", "0.5.2", Precision.INT4, "awq", 8192, None),
        ("tgi", "TGI", "3.2.0", Precision.FP16, "", 4096, None),
        ("trtllm", "TensorRT-LLM", "1.0.0", Precision.UNKNOWN, "", None, None),
        ("llamafile", "llamafile", "", Precision.INT8, "Q8_0", 8192, None),
        ("koboldcpp", "KoboldCpp", "1.95", Precision.UNKNOWN, "", 4096, 1),
        ("mlx", "MLX", "", Precision.UNKNOWN, "", None, 1),
        ("openai", "OpenAI-compatible", "", Precision.UNKNOWN, "", None, None),
    ],
)
@pytest.mark.parametrize("known_before", [True, False])
async def test_scripted_engines_describe_themselves(
    adapter_for, kind, label, version, precision, scheme, context, slots, known_before: bool
) -> None:
    adapter, _ = adapter_for(kind, None if known_before else "openai")
    engine = await adapter.describe()
    (model,) = engine.models
    assert (engine.kind, engine.label, engine.version) == (kind, label, version)
    assert (model.precision, model.scheme, model.context, model.slots) == (precision, scheme, context, slots)
    assert model.precision_from == ("nobody" if precision is Precision.UNKNOWN else "engine")
    assert model.capabilities >= PLAIN
    assert model.engine_model == ("default_model" if kind == "mlx" else "m")


async def test_only_what_an_engine_is_known_for_is_offered(adapter_for) -> None:
    capabilities = {kind: (await adapter_for(kind)[0].describe()).models[0].capabilities for kind in ("mlx", "openai")}
    assert capabilities == {"mlx": PLAIN, "openai": PLAIN}
    sglang = (await adapter_for("sglang")[0].describe()).models[0].capabilities
    assert {Capability.JSON_SCHEMA, Capability.CHOICES} <= sglang


async def test_the_operators_word_fills_in_and_the_engines_word_stands(adapter_for, tmp_path) -> None:
    adapter, _ = adapter_for("mlx", precision=Precision.BF16, scheme="x", slots=2)
    (model,) = (await adapter.describe()).models
    assert (model.precision, model.precision_from, model.slots) == (Precision.BF16, "configuration", 2)
    adapter, _ = adapter_for("tgi", precision=Precision.INT8)
    assert (await adapter.describe()).models[0].precision is Precision.FP16
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16"}))
    adapter, _ = adapter_for("mlx", model_dir=str(tmp_path))
    (model,) = (await adapter.describe()).models
    assert (model.precision, model.precision_from) == (Precision.BF16, "model folder")


async def test_recorded_mlx_stream_over_http_1_0_shows_progress_and_usage(adapter_for) -> None:
    adapter, engine = adapter_for("mlx")
    engine.next(recorded("mlx/chat_stream_long_prompt"))
    answer = await adapter.send(call(engine_model="default_model"))
    stream = await read_all(answer)
    assert b"keepalive" not in stream
    assert text_of(events(stream)) == "To create"
    outcome = answer.outcome
    assert (outcome.prefill_done, outcome.prefill_all) == (176, 176)
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (200, 2, 24)
    assert (outcome.whole, outcome.finish_reason) == (True, "length")


async def test_recorded_mlx_answer_is_joined_from_a_stream(adapter_for) -> None:
    adapter, engine = adapter_for("mlx")
    engine.next(recorded("mlx/chat_stream"))
    answer = await adapter.send(call(engine_model="default_model", stream=False))
    body = json.loads(await read_all(answer))
    assert body["choices"][0]["message"]["content"] == "I'm glad to"
    assert body["model"] == "asked-for"
    assert body["usage"]["total_tokens"] == 37
    sent = engine.requests[0].json
    assert sent["stream"] is True
    assert sent["model"] == "default_model"


async def test_recorded_mlx_errors_keep_their_meaning(adapter_for) -> None:
    adapter, engine = adapter_for("mlx")
    engine.next(recorded("mlx/bad_max"), recorded("mlx/embeddings"))
    with pytest.raises(Rejected, match="max_tokens must be at least 1"):
        await adapter.send(call(engine_model="default_model"))
    with pytest.raises(Rejected) as caught:
        await adapter.send(call({"input": "x"}, operation=Operation.EMBEDDINGS, engine_model="default_model"))
    assert caught.value.elsewhere


async def test_mlx_with_several_models_on_disk_serves_the_one_it_was_started_with(adapter_for) -> None:
    adapter, engine = adapter_for("mlx")
    data = [{"id": "a"}, {"id": "b"}]
    engine.routes["GET /v1/models"] = whole({"object": "list", "data": data})
    assert [model.engine_model for model in (await adapter.describe()).models] == ["default_model"]
    engine.routes["GET /v1/models"] = whole({"object": "list", "data": data[:1]})
    assert [model.engine_model for model in (await adapter.describe()).models] == ["a"]


async def test_an_http_1_0_answer_that_ends_early_is_no_whole_answer(adapter_for) -> None:
    adapter, engine = adapter_for("mlx")
    chunk = {"model": "default_model", "choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": None}]}
    engine.next(pieces(b"data: " + json.dumps(chunk).encode() + b"\n\n"))
    answer = await adapter.send(call(engine_model="default_model"))
    with pytest.raises(Interrupted):
        await read_all(answer)


async def test_an_engine_that_answers_a_stream_with_one_body_still_serves_a_client_that_wants_one(adapter_for) -> None:
    adapter, engine = adapter_for("openai")
    body = {"id": "x", "model": "m", "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    engine.next(whole(body))
    answer = await adapter.send(call(stream=False))
    assert json.loads(await read_all(answer))["choices"][0]["message"]["content"] == "Hi"


async def test_load_tells_that_it_answers_and_no_more(adapter_for) -> None:
    adapter, engine = adapter_for("openai")
    load = await adapter.load()
    assert (load.running, load.waiting, load.resident) == (None, None, None)
    engine.routes["GET /v1/models"] = text("nonsense")
    with pytest.raises(Broken) as caught:
        await adapter.load()
    assert caught.value.engine == "here"
    engine.stop()
    with pytest.raises(Unreachable):
        await adapter.load()
