"""Embeddings of a real llama.cpp that serves them, and a server that cannot pool its vectors into one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engines.llama import LlamaServer, own_server
from engines.subject import ASKED_NAME, Subject

from adapters.base import Endpoint
from adapters.llamacpp import LlamaCppAdapter
from policies.types import Capability, Operation

pytestmark = pytest.mark.llamacpp


@pytest.fixture
def embedder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LlamaServer]:
    pytest.importorskip("xllamacpp", reason="NO REAL LLAMA.CPP: install paceline[llamacpp]")
    options = ("--embeddings", "--pooling", request.param, "--ctx-size", "256", "--parallel", "1")
    with own_server(tmp_path / "llama.log", *options) as server:
        yield server


@pytest.mark.parametrize("embedder", ["mean"], indirect=True)
async def test_it_says_that_it_embeds_and_it_does(embedder: LlamaServer) -> None:
    subject = Subject(LlamaCppAdapter(Endpoint("e", embedder.url)), embedder.model)
    assert (await subject.model()).capabilities == {Capability.EMBEDDINGS}
    body, answer = await subject.whole({"input": ["one", "two words"]}, operation=Operation.EMBEDDINGS)
    assert body["model"] == ASKED_NAME
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert {len(item["embedding"]) for item in body["data"]} == {576}
    assert answer.outcome.prompt_tokens == body["usage"]["prompt_tokens"]
    await subject.adapter.aclose()


@pytest.mark.parametrize("embedder", ["none"], indirect=True)
async def test_vectors_that_are_not_pooled_are_no_embeddings(embedder: LlamaServer) -> None:
    subject = Subject(LlamaCppAdapter(Endpoint("e", embedder.url)), embedder.model)
    assert Capability.EMBEDDINGS not in (await subject.model()).capabilities
    await subject.adapter.aclose()
