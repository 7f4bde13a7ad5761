"""The context size that Ollama is asked for: never a cut prompt, and no reload that is not needed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engines.answers import call, read_all
from engines.recorded import lines, recorded
from engines.scripts import hang, whole
from hypothesis import given as for_all
from hypothesis import strategies as st

from adapters.base import Endpoint
from adapters.errors import Rejected
from adapters.ollama import OllamaAdapter
from adapters.ollama.context import Contexts, Need

MODEL = "smollm2"
CONTEXT = 8192  # smollm2's own, as the recorded /api/show says
DONE = recorded("ollama/0.32/chat_nostream")


@pytest.fixture
async def described(ollama):
    ollama.engine.routes["GET /api/ps"] = recorded("ollama/0.32/ps_after_unload")
    await ollama.adapter.describe()
    ollama.engine.always(DONE)
    return ollama


async def options_for(ollama, **given: Any) -> dict[str, Any]:
    count = len(ollama.engine.requests)
    await read_all(await ollama.adapter.send(call(engine_model=MODEL, **given)))
    options: dict[str, Any] = ollama.engine.requests[count].json["options"]
    return options


async def test_a_model_that_is_not_resident_starts_with_the_usual_context(described) -> None:
    options = await options_for(described, prompt_tokens=100, max_output=50)
    assert options == {"num_ctx": 4096, "num_predict": 50}


async def test_a_longer_request_takes_the_next_power_of_two(described) -> None:
    assert (await options_for(described, prompt_tokens=3900, max_output=500))["num_ctx"] == 8192


async def test_the_resident_context_is_kept_while_the_request_fits(described) -> None:
    described.engine.routes["GET /api/ps"] = recorded("ollama/0.32/ps_ctx512")
    await described.adapter.load()
    assert (await options_for(described, prompt_tokens=100, max_output=50))["num_ctx"] == 512
    assert (await options_for(described, prompt_tokens=500, max_output=50))["num_ctx"] == 1024
    assert (await options_for(described, prompt_tokens=10, max_output=5))["num_ctx"] == 1024


async def test_a_resident_context_of_an_odd_size_is_kept_too(described) -> None:
    await described.resident(MODEL, 6000)
    assert (await options_for(described, prompt_tokens=4500, max_output=50))["num_ctx"] == 6000


async def test_clients_with_different_needs_do_not_alternate(described) -> None:
    needs = [(100, 50), (5000, 50), (100, 50), (6000, 100), (50, None)]
    sizes = [(await options_for(described, prompt_tokens=p, max_output=m))["num_ctx"] for p, m in needs]
    assert sizes == [4096, 8192, 8192, 8192, 8192]


async def test_requests_at_the_same_time_agree_before_the_model_is_loaded(described) -> None:
    described.engine.next(hang())
    first = asyncio.ensure_future(described.adapter.send(call(engine_model=MODEL, prompt_tokens=5000, max_output=50)))
    await described.engine.received(0)
    await described.adapter.load()  # not resident yet, says /api/ps
    assert (await options_for(described, prompt_tokens=10, max_output=5))["num_ctx"] == 8192
    first.cancel()
    await (await described.engine.received(0)).left.wait()


async def test_an_unloaded_model_starts_small_again(described) -> None:
    await options_for(described, prompt_tokens=5000, max_output=50)
    await described.adapter.load()
    assert (await options_for(described, prompt_tokens=10, max_output=5))["num_ctx"] == 4096


async def test_the_modelfiles_own_num_ctx_is_where_a_cold_model_starts(ollama) -> None:
    show = {"model_info": {"llama.context_length": 32768}, "parameters": 'num_ctx   16384\nstop  "x"'}
    ollama.engine.routes["POST /api/show"] = whole({**show, "capabilities": ["completion"]})
    ollama.engine.routes["GET /api/ps"] = recorded("ollama/0.32/ps_after_unload")
    await ollama.adapter.describe()
    ollama.engine.always(DONE)
    assert (await options_for(ollama, prompt_tokens=10, max_output=5))["num_ctx"] == 16384


async def test_the_operators_num_ctx_is_the_only_one(ollama) -> None:
    adapter = OllamaAdapter(Endpoint("here", ollama.engine.url, options={"options": {"num_ctx": 2048}}))
    ollama.adapter = adapter
    ollama.engine.always(DONE)
    description = await adapter.describe()
    assert {model.context for model in description.models} == {2048}
    assert {model.settings for model in description.models} == {"num_ctx=2048"}
    for prompt in (10, 5000):
        assert (await options_for(ollama, prompt_tokens=prompt, max_output=5))["num_ctx"] == 2048
    ollama.engine.next(recorded("ollama/0.24/long_truncate_false_stream"))
    with pytest.raises(Rejected, match=r"about 5000 tokens.* 2048 "):
        await adapter.send(call(engine_model=MODEL, prompt_tokens=5000))
    await adapter.aclose()


async def test_an_answer_without_a_limit_ends_where_the_context_does(described) -> None:
    options = await options_for(described, prompt_tokens=1000, max_output=None)
    assert options["num_ctx"] == 4096
    assert 2500 < options["num_predict"] <= 4096 - 1000


async def test_a_limit_beyond_the_models_context_is_lowered_to_it(described) -> None:
    options = await options_for(described, prompt_tokens=6000, max_output=50_000)
    assert options["num_ctx"] == CONTEXT
    assert 1000 < options["num_predict"] <= CONTEXT - 6000


@pytest.mark.parametrize("version", ["0.24", "0.32"])
async def test_recorded_a_prompt_longer_than_thought_gets_a_larger_context(described, version: str) -> None:
    await described.resident(MODEL, 512)
    described.engine.next(recorded(f"ollama/{version}/long_truncate_false_stream"))
    answer = await described.adapter.send(call(engine_model=MODEL, prompt_tokens=100, max_output=2))
    await read_all(answer)
    sizes = [request.json["options"]["num_ctx"] for request in described.engine.requests]
    assert sizes == ([512, 4096] if version == "0.32" else [512, 1024])  # 0.32 says how long the prompt is
    assert (await options_for(described, prompt_tokens=100, max_output=2))["num_ctx"] == sizes[-1]


async def test_recorded_a_prompt_that_fits_nowhere_is_a_400_with_both_numbers(described) -> None:
    described.engine.always(whole({"error": "the input length exceeds the context length"}, 400))
    with pytest.raises(Rejected, match=r"about 9000 tokens.*8192") as caught:
        await described.adapter.send(call(engine_model=MODEL, prompt_tokens=9000, max_output=2))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert caught.value.elsewhere
    described.engine.always(
        whole(
            {
                "error": '{"error":{"message":"request (9001 tokens) exceeds the available context size (8192 tokens)",'
                '"n_prompt_tokens":9001,"n_ctx":8192}}'
            },
            400,
        )
    )
    with pytest.raises(Rejected, match=r"has 9001 tokens.*8192"):
        await described.adapter.send(call(engine_model=MODEL, prompt_tokens=100, max_output=2))


async def test_a_load_that_was_expected_is_told_as_one(described) -> None:
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 5, "eval_count": 1}
    loads = []
    for seconds in (0.9, 0.09, 0.4, 0.9):  # cold, warm, warm on a busy machine, loaded again by someone else
        line = {**end, "load_duration": int(seconds * 1e9)}
        described.engine.next(lines({"message": {"content": "x"}}, line))
        answer = await described.adapter.send(call(engine_model=MODEL))
        await read_all(answer)
        loads.append(answer.outcome.load_s)
    assert loads == [pytest.approx(0.9), 0.0, 0.0, pytest.approx(0.9)]


async def test_models_with_the_same_weights_share_one_context(described) -> None:
    await options_for(described, prompt_tokens=5000, max_output=50)
    answer = await described.adapter.send(call(engine_model="smollm2-tools", prompt_tokens=10, max_output=5))
    await read_all(answer)
    assert described.engine.requests[-1].json["options"]["num_ctx"] == 8192


@for_all(
    st.lists(
        st.tuples(st.integers(0, 40_000), st.one_of(st.none(), st.integers(1, 40_000)), st.integers(0, 40_000)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([512, 2048, 8192, 32_768, 40_960]),
)
def test_sizes_are_few_grow_only_and_hold_what_is_asked(needs, limit: int) -> None:
    contexts = Contexts()
    last = 0
    for prompt, output, least in needs:
        need = Need(prompt, output, least)
        size = contexts.choose("m", need, limit=limit)
        assert size >= min(need.context, limit)
        assert last <= size <= limit
        assert size == limit or size & (size - 1) == 0
        written = need.num_predict(size)
        assert 1 <= written <= (output or size)
        assert prompt + written <= size or written <= size // 16 or written == 1
        contexts.begin("m", size)
        contexts.end("m", size, loaded=True)
        last = size
