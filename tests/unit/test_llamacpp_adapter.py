"""What the llama.cpp adapter makes of a server's description of itself, of any age, and what it sends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from engines import scripts
from engines.scripted import ScriptedEngine
from engines.subject import Subject, read_all

from adapters.base import Endpoint
from adapters.errors import Broken, Loading
from adapters.llamacpp import LlamaCppAdapter
from policies.types import Capability, Operation, Precision

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}]}
PROPS: dict[str, Any] = {
    "default_generation_settings": {"n_ctx": 2048, "params": {"speculative.types": "none"}},
    "total_slots": 2,
    "model_ftype": "Q4_K - Medium",
    "model_path": "/models/some.gguf",
    "modalities": {"vision": False, "audio": False},
    "chat_template": "{{ messages }}",
    "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True},
    "build_info": "b11549-c0ffee00",
}


@pytest.fixture
async def llama(scripted: Callable[..., ScriptedEngine]) -> AsyncIterator[Subject]:
    engine = scripted(kind="llamacpp")
    subject = Subject(LlamaCppAdapter(Endpoint("llama", engine.url)), engine.model, engine)
    yield subject
    await subject.adapter.aclose()


def says(subject: Subject, **changes: Any) -> ScriptedEngine:
    """Let the server say this of itself."""
    assert subject.scripted is not None
    props = {name: value for name, value in {**PROPS, **changes}.items() if value is not None}
    subject.scripted.routes["GET /props"] = scripts.whole(props)
    return subject.scripted


async def test_a_present_build_is_described_by_its_own_word(llama: Subject) -> None:
    says(llama)
    model = await llama.model()
    assert (model.precision, model.scheme, model.precision_from) == (Precision.INT4, "Q4_K_M", "engine")
    assert (model.context, model.slots) == (2048, 2)
    assert model.digest.startswith("some.gguf:")
    assert "/models" not in model.digest
    assert {Capability.TOOLS, Capability.TOOL_CHOICE, Capability.CHOICES, Capability.JSON_SCHEMA} <= model.capabilities
    assert not {Capability.VISION, Capability.AUDIO, Capability.EMBEDDINGS} & model.capabilities
    assert llama.description is not None
    assert llama.description.version == "b11549-c0ffee00"


@pytest.mark.parametrize(
    ("changes", "has", "lacks"),
    [
        ({"chat_template_caps": {"supports_tools": False, "supports_tool_calls": False}}, (), ("tools", "tool_choice")),
        ({"chat_template_caps": None, "chat_template": "{% if tools %}"}, ("tools",), ()),
        ({"chat_template_caps": None, "chat_template": "{{ messages }}"}, (), ("tools",)),
        ({"modalities": {"vision": True, "audio": True}}, ("vision", "audio"), ()),
        ({"modalities": None}, ("chat",), ("vision",)),
        ({"build_info": "b5000-abc"}, (), ("choices",)),
        ({"build_info": "b0-unknown"}, ("choices",), ()),
        ({"total_slots": 1}, (), ("choices",)),
    ],
)
async def test_capabilities_are_the_servers_own_word(
    llama: Subject, changes: dict[str, Any], has: tuple[str, ...], lacks: tuple[str, ...]
) -> None:
    says(llama, **changes)
    capabilities = (await llama.model()).capabilities
    assert {Capability(name) for name in has} <= capabilities
    assert not {Capability(name) for name in lacks} & capabilities


async def test_a_server_for_embeddings_is_for_nothing_else(llama: Subject) -> None:
    says(llama).capabilities.add("embeddings")
    assert (await llama.model()).capabilities == {Capability.EMBEDDINGS}


async def test_the_trial_for_embeddings_is_made_once(llama: Subject) -> None:
    engine = says(llama)
    for _ in range(3):
        await llama.adapter.describe()
    assert [request.path for request in engine.watched].count("/v1/embeddings") == 1


async def test_another_template_or_more_slots_are_other_settings(llama: Subject) -> None:
    seen = set()
    for changes in (
        {},
        {"chat_template": "other"},
        {"total_slots": 4},
        {"default_generation_settings": {"n_ctx": 512}},
    ):
        says(llama, **changes)
        seen.add((await llama.adapter.describe()).models[0].settings)
    assert len(seen) == 4


async def test_a_server_out_of_xllamacpp_says_its_package_and_options_in_tags(llama: Subject) -> None:
    engine = says(llama, build_info="b0-unknown")
    tags = ["threads-2", "xllamacpp-2026.10.11549", "batch-128"]
    engine.routes["GET /v1/models"] = scripts.whole({"data": [{"id": llama.engine_model, "tags": tags}]})
    model = await llama.model()
    assert llama.description is not None
    assert llama.description.version == "xllamacpp 2026.10.11549"
    assert model.settings.endswith(" batch-128 threads-2 xllamacpp-2026.10.11549")
    assert Capability.CHOICES in model.capabilities


async def test_the_operator_names_a_precision_that_the_server_does_not(llama: Subject) -> None:
    engine = says(llama, model_ftype="unknown, may not work")
    adapter = LlamaCppAdapter(Endpoint("llama", engine.url, precision=Precision.INT8))
    (model,) = (await adapter.describe()).models
    assert (model.precision, model.precision_from) == (Precision.INT8, "configuration")
    await adapter.aclose()


async def test_a_server_without_props_is_still_described(llama: Subject) -> None:
    assert llama.scripted is not None
    del llama.scripted.routes["GET /props"]
    model = await llama.model()
    assert model.precision is Precision.UNKNOWN
    assert Capability.CHAT in model.capabilities
    assert Capability.TOOLS not in model.capabilities


async def test_a_model_that_loads_is_loading_not_down(llama: Subject) -> None:
    assert llama.scripted is not None
    loading = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    llama.scripted.routes["GET /health"] = scripts.whole(loading, 503)
    with pytest.raises(Loading):
        await llama.adapter.describe()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data": []}', b"<html>"])
async def test_a_list_of_models_that_is_none_is_broken(llama: Subject, body: bytes) -> None:
    says(llama).routes["GET /v1/models"] = scripts.text(body)
    with pytest.raises(Broken):
        await llama.adapter.describe()


async def test_load_comes_from_metrics_where_they_are_on_and_from_slots_elsewhere(llama: Subject) -> None:
    engine = says(llama)
    engine.routes["GET /metrics"] = scripts.text("llamacpp:requests_processing 2\nllamacpp:requests_deferred 3\n")
    load = await llama.adapter.load()
    assert (load.running, load.waiting) == (2, 3)
    says(llama, endpoint_metrics=False)
    await llama.adapter.describe()
    load = await llama.adapter.load()
    assert (load.running, load.waiting) == (1, None)
    del engine.routes["GET /slots"]
    assert (await llama.adapter.load()).running is None


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_always_asked_for_a_stream_with_progress_and_usage(llama: Subject, stream: bool) -> None:
    await read_all(await llama.adapter.send(llama.call({**HELLO, "top_k": 1}, stream=stream)))
    assert llama.scripted is not None
    sent = llama.scripted.requests[0].json
    assert (sent["stream"], sent["return_progress"], sent["stream_options"]) == (True, True, {"include_usage": True})
    assert sent["model"] == llama.engine_model
    assert sent["top_k"] == 1


async def test_the_clients_own_stream_options_and_wishes_are_kept(llama: Subject) -> None:
    options = {"continuous_usage_stats": True, "include_usage": False}
    call = llama.call({**HELLO, "stream_options": options, "return_progress": False}, stream=True)
    await read_all(await llama.adapter.send(call))
    assert llama.scripted is not None
    sent = llama.scripted.requests[0].json
    assert sent["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    assert sent["return_progress"] is False


async def test_a_prompt_that_is_not_text_is_not_counted(llama: Subject) -> None:
    for prompt in (["a", "b"], [1, 2, 3]):
        assert await llama.adapter.count_tokens(llama.call({"prompt": prompt}, Operation.COMPLETION)) is None
    assert await llama.adapter.count_tokens(llama.call({"input": "x"}, Operation.EMBEDDINGS)) is None
