"""The quality regression on real llama.cpp servers: another format of the same weights passes, harmed weights fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine_kit.precision import derive
from engines import llama

from adapters.base import Endpoint
from adapters.registry import create
from gateway.deployments import EngineWord, build_deployments
from measure.quality.examine import Examinee
from measure.quality.regression import Examined, Reference, compare, refer
from measure.quality.suite import SUITE
from policies.types import Hardware, Precision, Quality

SHORT = sorted((prompt for prompt in SUITE if prompt.category != "context"), key=lambda prompt: prompt.max_tokens)[:36]
"""A sixth of the suite's tokens. `python -m benchmarks.quality_noise` asks them all, at more levels of noise."""
HEAVY = 0.2

pytestmark = pytest.mark.llamacpp


@asynccontextmanager
async def examinee(server: llama.LlamaServer, name: str) -> AsyncIterator[Examinee]:
    """A server's deployment, ready to be asked."""
    adapter = create("llamacpp", Endpoint(name=name, url=server.url))
    try:
        (deployment,) = build_deployments(EngineWord(name), await adapter.describe(), Hardware("here"))
        yield Examinee(deployment, lambda: adapter)
    finally:
        await adapter.aclose()


async def compared(reference: Reference, folder: Path, noise: float) -> Examined:
    """What the regression says of the model in Q8_0, with noise."""
    model = folder / "candidate.gguf"
    derive(llama.gguf(), str(model), "q8_0", noise)
    with llama.own_server(folder / "candidate.log", "--model", str(model)) as server:
        async with examinee(server, f"noise-{noise:g}") as candidate:
            return await compare(reference, candidate)


async def test_another_format_is_as_good_and_heavy_noise_fails(llamacpp: llama.LlamaServer, tmp_path: Path) -> None:
    async with examinee(llamacpp, "baseline") as baseline:
        reference = await refer(baseline, SHORT, "short")
    assert not any(reply.failed for reply in reference.replies.values())
    unharmed = await compared(reference, tmp_path, 0.0)
    assert unharmed.deployment.precision is Precision.INT8
    found = {measure.name: measure for measure in unharmed.verdict.measures}
    assert found["likelihood"].passed
    assert found["agreement"].passed
    # In so few prompts a single answer that turns out otherwise can leave a doubt; but none may be shown to be worse.
    assert not any(measure.shown for measure in found.values()), unharmed.verdict.why
    harmed = await compared(reference, tmp_path, HEAVY)
    assert harmed.verdict.quality is Quality.FAILED
    assert "log-probability lost" in harmed.verdict.why
    loss = {measure.name: measure for measure in harmed.verdict.measures}["likelihood"]
    assert found["likelihood"].high < loss.low
