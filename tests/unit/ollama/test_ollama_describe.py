"""What Ollama says of itself and its models."""

from __future__ import annotations

import pytest
from engines.answers import call
from engines.recorded import exchange_of, play_ollama, recorded
from engines.scripts import drop, text, whole

from adapters.base import Endpoint
from adapters.errors import Broken, Unreachable
from adapters.ollama import OllamaAdapter
from policies.types import Capability, Precision

TEXT = {Capability.CHAT, Capability.COMPLETION, Capability.JSON_OBJECT, Capability.JSON_SCHEMA, Capability.LOGPROBS}


@pytest.mark.parametrize("version", ["0.24", "0.32"])
async def test_recorded_models_are_described_by_the_engines_own_word(ollama, version: str) -> None:
    play_ollama(ollama.engine, version)
    engine = await ollama.adapter.describe()
    assert (engine.kind, engine.label, engine.version) == ("ollama", "Ollama", "0.0.0")
    plain, tools = engine.models
    assert (plain.engine_model, tools.engine_model) == ("smollm2", "smollm2-tools")
    assert (plain.precision, plain.scheme, plain.precision_from) == (Precision.INT4, "Q4_1", "engine")
    assert plain.context == 8192
    assert plain.slots == 1
    assert plain.capabilities == TEXT
    assert tools.capabilities == TEXT | {Capability.TOOLS}
    assert (plain.resident, tools.resident) == (True, True)  # they differ in their template only
    assert plain.digest == exchange_of(f"ollama/{version}/tags")["json"]["models"][0]["digest"]


async def test_a_reload_with_another_context_is_no_other_model(ollama) -> None:
    before = (await ollama.adapter.describe()).models[0]
    ollama.engine.routes["GET /api/ps"] = recorded("ollama/0.32/ps_ctx512")
    assert (await ollama.adapter.describe()).models[0] == before


async def test_each_model_is_asked_about_once_per_digest(ollama) -> None:
    await ollama.adapter.describe()
    await ollama.adapter.describe()
    shown = [request.json["model"] for request in ollama.engine.watched if request.path == "/api/show"]
    assert sorted(shown) == ["smollm2-tools:latest", "smollm2:latest"]


async def test_what_is_forgotten_by_ollama_is_forgotten_here(ollama) -> None:
    await ollama.adapter.describe()
    ollama.engine.routes["GET /api/tags"] = whole({"models": None})
    assert (await ollama.adapter.describe()).models == ()
    assert ollama.adapter._shown == {}


async def test_a_model_that_cannot_be_read_is_left_out_and_no_other(ollama) -> None:
    good = ollama.engine.routes["POST /api/show"]

    async def show(exchange) -> None:
        if exchange.request.json["model"].startswith("smollm2-tools"):
            await exchange.json({"error": "invalid file magic"}, 500)
        else:
            await good(exchange)

    ollama.engine.routes["POST /api/show"] = show
    assert [model.engine_model for model in (await ollama.adapter.describe()).models] == ["smollm2"]


async def test_models_that_ollama_forwards_to_a_cloud_are_not_offered(ollama) -> None:
    tags = exchange_of("ollama/0.32/tags")["json"]["models"]
    cloud = {"name": "big:cloud", "digest": "c", "remote_host": "https://ollama.com", "remote_model": "big"}
    ollama.engine.routes["GET /api/tags"] = whole({"models": [*tags, cloud]})
    assert [model.engine_model for model in (await ollama.adapter.describe()).models] == ["smollm2"]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (["embedding"], {Capability.EMBEDDINGS}),
        (["completion", "vision", "thinking"], TEXT | {Capability.VISION}),
        (["image"], set()),
        (None, TEXT),
    ],
)
async def test_capabilities_follow_what_show_says(ollama, capabilities, expected) -> None:
    show = exchange_of("ollama/0.32/show")["json"] | {"capabilities": capabilities}
    ollama.engine.routes["POST /api/show"] = whole(show)
    assert (await ollama.adapter.describe()).models[0].capabilities == expected


@pytest.mark.parametrize(("version", "has"), [("0.12.10", False), ("0.12.11", True), ("0.13.0-rc1", True)])
async def test_logprobs_are_offered_since_ollama_has_them(ollama, version: str, has: bool) -> None:
    ollama.engine.routes["GET /api/version"] = whole({"version": version})
    assert (Capability.LOGPROBS in (await ollama.adapter.describe()).models[0].capabilities) is has


async def test_the_operator_fills_in_what_ollama_does_not_tell(ollama) -> None:
    tags = {"models": [{"name": "odd:7b", "digest": "d", "details": {"quantization_level": "unknown"}}]}
    ollama.engine.routes["GET /api/tags"] = whole(tags)
    ollama.engine.routes["POST /api/show"] = whole({"capabilities": ["completion"], "model_info": {}})
    endpoint = Endpoint("here", ollama.engine.url, precision=Precision.INT8, scheme="custom", slots=4)
    adapter = OllamaAdapter(endpoint)
    (model,) = (await adapter.describe()).models
    assert (model.precision, model.scheme, model.precision_from) == (Precision.INT8, "custom", "configuration")
    assert (model.slots, model.context, model.engine_model) == (4, None, "odd:7b")
    await adapter.aclose()


async def test_a_name_that_the_operator_maps_stays_as_written(ollama) -> None:
    adapter = OllamaAdapter(Endpoint("here", ollama.engine.url, models={"smollm2:latest": "small"}))
    names = [model.engine_model for model in (await adapter.describe()).models]
    assert names == ["smollm2:latest", "smollm2-tools"]
    await adapter.aclose()


@pytest.mark.parametrize(
    ("name", "resident"), [("ps_loaded", {"smollm2", "smollm2-tools"}), ("ps_after_unload", set())]
)
async def test_load_says_what_is_resident_and_nothing_that_it_does_not_know(ollama, name: str, resident) -> None:
    await ollama.adapter.describe()
    ollama.engine.routes["GET /api/ps"] = recorded(f"ollama/0.24/{name}")
    load = await ollama.adapter.load()
    assert load.resident == resident
    assert (load.running, load.waiting, load.kv_usage) == (None, None, None)


@pytest.mark.parametrize("script", [text("not here", 404), text("<html>"), drop()])
async def test_something_else_on_the_port_is_broken(ollama, script) -> None:
    ollama.engine.routes["GET /api/version"] = script
    with pytest.raises(Broken) as caught:
        await ollama.adapter.describe()
    assert caught.value.engine == "here"


async def test_a_stopped_engine_is_unreachable(ollama) -> None:
    ollama.engine.stop()
    with pytest.raises(Unreachable):
        await ollama.adapter.describe()
    with pytest.raises(Unreachable) as caught:
        await ollama.adapter.send(call())
    assert caught.value.engine == "here"
