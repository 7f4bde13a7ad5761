"""What the vLLM adapter makes of a server's answers: its flags from refusals, its precision from the folder."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from engines import scripts
from engines.scripted import ScriptedEngine
from engines.subject import Subject, read_all

from adapters.base import Endpoint
from adapters.errors import Broken, Unreachable
from adapters.vllm import VllmAdapter
from policies.types import Capability, Operation, Precision

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}]}


@pytest.fixture
async def vllm(scripted: Callable[..., ScriptedEngine]) -> AsyncIterator[Subject]:
    engine = scripted(kind="vllm")
    subject = Subject(VllmAdapter(Endpoint("vllm", engine.url)), engine.model, engine)
    yield subject
    await subject.adapter.aclose()


@pytest.mark.parametrize(
    ("able", "expected"),
    [
        (set(), set()),
        ({"tools", "tool_choice"}, {Capability.TOOLS, Capability.TOOL_CHOICE}),
        ({"tool_choice"}, {Capability.TOOL_CHOICE}),
        ({"vision"}, {Capability.VISION}),
    ],
)
async def test_capabilities_are_tried_out_without_computing(
    vllm: Subject, able: set[str], expected: set[Capability]
) -> None:
    assert vllm.scripted is not None
    vllm.scripted.capabilities = able
    found = (await vllm.model()).capabilities
    assert {Capability.CHAT, Capability.COMPLETION, Capability.JSON_SCHEMA, Capability.CHOICES} <= found
    flexible = {Capability.TOOLS, Capability.TOOL_CHOICE, Capability.VISION, Capability.EMBEDDINGS}
    assert found & flexible == expected
    assert vllm.scripted.requests == []


async def test_trials_are_made_once_and_again_after_it_was_away(vllm: Subject) -> None:
    engine = vllm.scripted
    assert engine is not None
    await vllm.adapter.describe()
    first = len(engine.watched)
    await vllm.adapter.describe()
    assert len(engine.watched) == first + 3
    version = engine.routes.pop("GET /version")
    with pytest.raises(Exception, match="Not Found"):
        await vllm.adapter.describe()
    engine.routes["GET /version"] = version
    engine.capabilities = {"vision"}
    assert Capability.VISION in (await vllm.adapter.describe()).models[0].capabilities


async def test_a_model_for_embeddings_is_for_nothing_else(vllm: Subject) -> None:
    assert vllm.scripted is not None
    vllm.scripted.capabilities = {"embeddings"}
    assert (await vllm.model()).capabilities == {Capability.EMBEDDINGS}


async def test_a_model_without_a_chat_template_does_not_chat(vllm: Subject) -> None:
    assert vllm.scripted is not None
    words = "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template"
    vllm.scripted.routes["POST /v1/chat/completions"] = scripts.status(400, {"error": {"message": words}})
    found = (await vllm.model()).capabilities
    assert Capability.COMPLETION in found
    assert not {Capability.CHAT, Capability.TOOLS, Capability.VISION} & found


def serving(vllm: Subject, folder: Path, **settings: Any) -> VllmAdapter:
    """An adapter to the same server, which says that it serves ``folder``."""
    assert vllm.scripted is not None
    card = {"id": vllm.engine_model, "root": str(folder), "max_model_len": 4096}
    vllm.scripted.routes["GET /v1/models"] = scripts.whole({"data": [card]})
    return VllmAdapter(Endpoint("vllm", vllm.scripted.url, **settings))


@pytest.mark.parametrize(
    ("config", "said", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, None, (Precision.BF16, "", "model folder")),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, None, (Precision.INT4, "AWQ", "model folder")),
        ({"torch_dtype": "float32"}, None, (Precision.UNKNOWN, "", "nobody")),
        ({}, None, (Precision.UNKNOWN, "", "nobody")),
        ({"torch_dtype": "bfloat16"}, Precision.FP16, (Precision.FP16, "", "configuration")),
    ],
)
async def test_precision_is_the_operators_word_or_the_folders(
    vllm: Subject, tmp_path: Path, config: Any, said: Precision | None, expected: Any
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    adapter = serving(vllm, tmp_path, precision=said)
    (model,) = (await adapter.describe()).models
    assert (model.precision, model.scheme, model.precision_from) == expected
    assert model.context == 4096
    await adapter.aclose()


async def test_load_is_summed_over_its_engines(vllm: Subject) -> None:
    load = await vllm.adapter.load()
    assert (load.running, load.waiting, load.kv_usage) == (2, 1, 0.25)


async def test_a_client_that_does_not_stream_gets_its_one_body(vllm: Subject) -> None:
    call = vllm.call({**HELLO, "stream_options": {"include_usage": True}})
    await read_all(await vllm.adapter.send(call))
    assert vllm.scripted is not None
    sent = vllm.scripted.requests[0].json
    assert not sent.get("stream")
    assert "stream_options" not in sent  # refused beside stream: false


async def test_tokens_are_counted_with_tools_and_for_text_only(vllm: Subject) -> None:
    engine = vllm.scripted
    assert engine is not None
    engine.always(scripts.whole({"count": 33}))
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert await vllm.adapter.count_tokens(vllm.call({**HELLO, "tools": tools, "temperature": 0})) == 33
    assert engine.requests[0].path == "/tokenize"
    assert engine.requests[0].json == {**HELLO, "tools": tools, "model": vllm.engine_model}
    assert await vllm.adapter.count_tokens(vllm.call({"prompt": [1, 2]}, Operation.COMPLETION)) is None
    assert await vllm.adapter.count_tokens(vllm.call({"input": "x"}, Operation.EMBEDDINGS)) is None
    engine.always(scripts.status(404))
    assert await vllm.adapter.count_tokens(vllm.call(HELLO)) is None


async def test_a_list_of_no_models_is_broken(vllm: Subject) -> None:
    assert vllm.scripted is not None
    vllm.scripted.routes["GET /v1/models"] = scripts.whole({"data": []})
    with pytest.raises(Broken):
        await vllm.adapter.describe()
    vllm.scripted.stop()
    with pytest.raises(Unreachable):
        await vllm.adapter.describe()


@pytest.mark.parametrize(
    ("settings", "block"),
    [
        ('block_size="128",enable_prefix_caching="True"', 128),
        ('enable_prefix_caching="False",block_size="16"', 0),
        ('block_size="None"', 1),
        ('other="1"', 1),
    ],
)
async def test_its_gauges_tell_how_its_prefix_cache_is_cut(vllm: Subject, settings: str, block: int) -> None:
    assert vllm.scripted is not None
    vllm.scripted.routes["GET /metrics"] = scripts.text(f"vllm:cache_config_info{{{settings}}} 1.0\n")
    assert (await vllm.model()).cache_block == block


async def test_metrics_that_are_closed_do_no_harm(vllm: Subject) -> None:
    assert vllm.scripted is not None
    vllm.scripted.routes["GET /metrics"] = scripts.status(403)
    assert (await vllm.model()).cache_block == 1
