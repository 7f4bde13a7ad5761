"""LM Studio, played from its documentation: it could not be installed where this was written."""

from __future__ import annotations

import pytest
from engines.answers import call, events, read_all, text_of
from engines.scripts import chat, text, whole

from adapters.base import Endpoint
from adapters.errors import Broken
from adapters.lmstudio import LmStudioAdapter
from policies.types import Capability, Precision

DOCUMENTED = {
    "object": "list",
    "data": [
        {
            "id": "qwen2-vl-7b-instruct",
            "type": "vlm",
            "publisher": "mlx-community",
            "arch": "qwen2_vl",
            "compatibility_type": "mlx",
            "quantization": "4bit",
            "state": "not-loaded",
            "max_context_length": 32768,
        },
        {
            "id": "meta-llama-3.1-8b-instruct",
            "type": "llm",
            "arch": "llama",
            "compatibility_type": "gguf",
            "quantization": "Q8_0",
            "state": "loaded",
            "max_context_length": 131072,
            "loaded_context_length": 4096,
            "capabilities": ["tool_use"],
        },
        {
            "id": "text-embedding-nomic-embed-text-v1.5",
            "type": "embeddings",
            "arch": "nomic-bert",
            "compatibility_type": "gguf",
            "quantization": "F16",
            "state": "not-loaded",
            "max_context_length": 2048,
        },
        {"id": "some-voice", "type": "tts"},
    ],
}


@pytest.fixture
async def lmstudio(scripted):
    engine = scripted(kind="lmstudio")
    engine.routes["GET /api/v0/models"] = whole(DOCUMENTED)
    adapter = LmStudioAdapter(Endpoint("here", engine.url))
    yield adapter, engine
    await adapter.aclose()


async def test_scripted_models_are_described_with_what_they_really_run(lmstudio) -> None:
    adapter, _ = lmstudio
    engine = await adapter.describe()
    assert (engine.kind, engine.label) == ("lmstudio", "LM Studio")
    seeing, chatting, embedding = engine.models
    assert (seeing.precision, seeing.scheme, seeing.context) == (Precision.INT4, "4bit", 32768)
    assert (chatting.precision, chatting.scheme, chatting.context) == (Precision.INT8, "Q8_0", 4096)
    assert (embedding.precision, embedding.precision_from) == (Precision.FP16, "engine")
    assert [model.resident for model in engine.models] == [False, True, False]
    text_only = {Capability.CHAT, Capability.COMPLETION, Capability.JSON_SCHEMA}
    assert seeing.capabilities == text_only | {Capability.VISION}
    assert chatting.capabilities == text_only | {Capability.TOOLS}
    assert embedding.capabilities == {Capability.EMBEDDINGS}


async def test_scripted_load_tells_which_models_are_resident(lmstudio) -> None:
    adapter, _ = lmstudio
    load = await adapter.load()
    assert load.resident == {"meta-llama-3.1-8b-instruct"}
    assert load.running is None


async def test_scripted_chat_goes_through_openais_protocol(lmstudio) -> None:
    adapter, engine = lmstudio
    engine.next(chat(["Hel", "lo"]))
    answer = await adapter.send(call(engine_model="meta-llama-3.1-8b-instruct"))
    chunks = events(await read_all(answer))
    assert text_of(chunks) == "Hello"
    assert {chunk["model"] for chunk in chunks} == {"asked-for"}
    assert engine.requests[0].path == "/v1/chat/completions"
    assert engine.requests[0].json["model"] == "meta-llama-3.1-8b-instruct"


@pytest.mark.parametrize("script", [whole({"data": "no list"}), text("<html>")])
async def test_scripted_nonsense_is_broken(lmstudio, script) -> None:
    adapter, engine = lmstudio
    engine.routes["GET /api/v0/models"] = script
    with pytest.raises(Broken) as caught:
        await adapter.describe()
    assert caught.value.engine == "here"
