"""The quick measurement: what it sends and learns, and what it does when the engine or live traffic is in its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from engines.llama import LlamaServer
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import chat, cut, hang, silence, stall, status
from engines.signals import Gate
from measurements import deployment

import measure.quick
from adapters.base import Adapter, Endpoint
from adapters.registry import create
from measure.quick import LENGTHS, OUTPUT_TOKENS, RUNS, measure_quickly
from measure.store import Store
from measure.traffic import REPEATS, Traffic
from policies.types import Capability, Operation, Precision

SIXTEEN = ["word "] * OUTPUT_TOKENS
PACE_S = 0.05
"""The scripted engine's pace where it has one."""

Adapters = Callable[..., Adapter]


@pytest.fixture
async def adapters() -> AsyncIterator[Adapters]:
    made: list[Adapter] = []

    def make(engine: ScriptedEngine | LlamaServer, kind: str = "llamacpp", **fields: Any) -> Adapter:
        made.append(create(kind, Endpoint(name="engine", url=engine.url, **fields)))
        return made[-1]

    yield make
    for adapter in made:
        await adapter.aclose()


def text_of(body: Any) -> str:
    text: str = body["prompt"] if "prompt" in body else body["input"]
    return text


async def answer(exchange: Exchange) -> None:
    """A right answer, whose token count grows with the prompt: four bytes a token."""
    await chat(SIXTEEN, prompt_tokens=len(text_of(exchange.request.json).encode()) // 4)(exchange)


def prompts(engine: ScriptedEngine) -> list[str]:
    return [text_of(request.json) for request in engine.requests]


async def test_the_smallest_request_comes_first_and_the_warm_up_does_not_count(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    result = await measure_quickly(adapters(engine), deployment())
    warm_up, *counted = [len(prompt) for prompt in prompts(engine)]
    assert len(counted) == len(LENGTHS) * RUNS
    first, second = counted[:3], counted[3:7]
    assert first == sorted(first)
    assert second == sorted(second, reverse=True), "by turns, so that the shortest does not come after the longest"
    assert max(first) < max(second), "the longest waits for the second round"
    assert warm_up < first[1]
    assert [len(record.runs) for record in result.records] == [RUNS] * len(LENGTHS)
    assert [record.output_tokens for record in result.records] == [OUTPUT_TOKENS] * len(LENGTHS)
    assert [sample.prompt_tokens for sample in result.samples] == pytest.approx(LENGTHS, rel=0.1)
    assert not result.failed


async def test_a_length_is_hit_also_where_short_texts_have_fewer_tokens_to_the_byte(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    async def by_length(exchange: Exchange) -> None:
        size = len(text_of(exchange.request.json).encode())
        await chat(SIXTEEN, prompt_tokens=size // 5 if size < 200 else size // 3)(exchange)

    engine = scripted(kind="llamacpp")
    engine.always(by_length)
    result = await measure_quickly(adapters(engine), deployment())
    assert [record.prompt_tokens for record in result.records] == pytest.approx(LENGTHS, rel=0.1)


async def test_the_work_is_the_same_each_time_and_no_cache_helps(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    await measure_quickly(adapters(engine), deployment())
    for request in engine.requests:
        asked = request.json
        assert (asked["max_tokens"], asked["ignore_eos"], asked["cache_prompt"]) == (OUTPUT_TOKENS, True, False)
    beginnings = [prompt[0] for prompt in prompts(engine)]
    assert len(set(beginnings)) == len(beginnings)


async def test_another_measurement_sends_other_prompts_and_a_seed_the_same(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    sent = []
    for seed in (7, 7, None):
        result = await measure_quickly(adapters(engine), deployment(), seed=seed)
        assert seed is None or {record.asked.seed for record in result.records} == {7}
        sent.append(prompts(engine)[-10:])
    assert sent[0] == sent[1] != sent[2]


async def test_an_engine_that_might_refuse_unknown_fields_is_not_sent_any(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="openai")
    engine.always(chat(SIXTEEN, prompt_tokens=40))
    only_chat = deployment(engine="openai", capabilities=frozenset({Capability.CHAT}))
    result = await measure_quickly(adapters(engine, "openai"), only_chat)
    assert not result.failed
    assert {record.asked.operation for record in result.records} == {Operation.CHAT}
    known = {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}
    assert all(set(request.json) <= known for request in engine.requests)


async def test_the_time_to_first_token_ends_at_the_first_content_and_decode_lies_after_it(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine, gate = scripted(kind="llamacpp"), Gate()
    paced = chat(["one ", "two ", "three"], prompt_tokens=30, gate=gate, progress=[(10, 30), (30, 30)])
    engine.next(answer, paced)
    engine.always(answer)
    clock = asyncio.get_running_loop().time
    measuring = asyncio.create_task(measure_quickly(adapters(engine), deployment(), budget_s=0.0))
    await engine.received(1)
    received = clock()
    gate.release(2)
    await asyncio.sleep(PACE_S)
    before_first_token = clock()
    gate.release(1)
    await asyncio.sleep(PACE_S)
    before_last_token = clock()
    gate.open()
    result = await measuring
    (run,) = result.records[0].runs
    assert run.ttft_s > before_first_token - received
    assert run.ttft_s + run.decode_s > before_last_token - received
    assert run.ttft_s + run.decode_s <= run.total_s
    assert run.tpot_s == run.decode_s / 2
    assert (run.engine_prefill_s, run.engine_decode_s) == (0.05, 0.03)


async def test_a_cell_that_fails_is_recorded_with_its_cause_and_the_rest_goes_on(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    async def out_of_memory(exchange: Exchange) -> None:
        long = len(text_of(exchange.request.json)) > 1200
        script = status(500, {"error": {"message": "out of memory", "type": "server_error"}}) if long else answer
        await script(exchange)

    engine = scripted(kind="llamacpp")
    engine.always(out_of_memory)
    result = await measure_quickly(adapters(engine), deployment())
    short, middle, *others = result.records
    assert len(others) == 2
    for long in others:
        assert "Broken" in long.failed
        assert "out of memory" in long.failed
        assert long.ttft_s is None
    assert not short.failed
    assert not middle.failed
    assert len(result.samples) == 2
    assert not result.failed
    assert len(engine.requests) == 1 + 2 * RUNS + 2


@pytest.mark.parametrize("fault", [cut(after=1), cut(after=0), status(503), status(400)])
async def test_an_engine_that_fails_at_once_is_left_alone_and_the_cause_recorded(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters, fault: Any
) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(fault)
    result = await measure_quickly(adapters(engine), deployment())
    assert result.failed
    assert result.samples == ()
    assert all(record.failed for record in result.records)
    assert len({text_of(request.json)[:8] for request in engine.requests}) == 1


async def test_an_engine_that_is_gone_is_a_recorded_failure(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="llamacpp")
    adapter = adapters(engine)
    engine.stop()
    result = await measure_quickly(adapter, deployment())
    assert "Unreachable" in result.failed


@pytest.mark.parametrize("fault", [hang(), silence(), stall(after=2)])
async def test_an_engine_that_hangs_is_given_up(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure.quick, "WARM_UP_LIMIT_S", 0.2)
    engine = scripted(kind="llamacpp")
    engine.always(fault)
    result = await measure_quickly(adapters(engine), deployment())
    assert "no answer within 0.2 s" in result.failed
    await engine.requests[0].left.wait()


async def test_cancelling_ends_the_request_at_the_engine(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="llamacpp")
    engine.next(answer)
    engine.always(stall(after=3))
    measuring = asyncio.create_task(measure_quickly(adapters(engine), deployment()))
    request = await engine.received(1)
    measuring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await measuring
    await request.left.wait()


async def test_a_run_gives_way_to_a_live_request_and_is_repeated_after_it(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine, traffic = scripted(kind="llamacpp"), Traffic()
    engine.next(answer, stall(after=1))
    engine.always(answer)
    measuring = asyncio.create_task(measure_quickly(adapters(engine), deployment(), traffic=traffic))
    disturbed = await engine.received(1)
    traffic.begin()
    await disturbed.left.wait()
    assert len(engine.requests) == 2
    traffic.end()
    result = await measuring
    assert len(engine.requests) == 2 + len(LENGTHS) * RUNS
    assert not any(run.disturbed for record in result.records for run in record.runs)


async def test_under_steady_traffic_only_the_necessary_runs_are_made_and_marked(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine, traffic = scripted(kind="llamacpp"), Traffic()
    engine.always(answer)
    traffic.begin()
    result = await measure_quickly(adapters(engine), deployment(), traffic=traffic, idle_limit_s=0.01)
    assert len(engine.requests) == 3
    assert [record.disturbed for record in result.records] == [True, True]
    assert len(result.samples) == 2


async def test_a_run_that_was_disturbed_too_often_stays_and_is_marked(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine, traffic, gate = scripted(kind="llamacpp"), Traffic(), Gate()
    engine.next(answer, *[stall(after=1)] * REPEATS, chat(SIXTEEN, prompt_tokens=32, gate=gate))
    engine.always(answer)
    measuring = asyncio.create_task(measure_quickly(adapters(engine), deployment(), traffic=traffic))
    for repeat in range(REPEATS):
        request = await engine.received(1 + repeat)
        traffic.begin()
        await request.left.wait()
        traffic.end()
    await engine.received(1 + REPEATS)
    traffic.begin()
    traffic.end()
    gate.open()
    result = await measuring
    assert [run.disturbed for run in result.records[0].runs] == [True]
    assert [len(record.runs) for record in result.records] == [1, 1]


async def test_without_budget_two_lengths_are_measured_once(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    result = await measure_quickly(adapters(engine), deployment(), budget_s=0.0)
    assert [record.asked.prompt_tokens for record in result.records] == [32, 128]
    assert len(engine.requests) == 3


async def test_prompts_stay_within_a_small_context(scripted: Callable[..., ScriptedEngine], adapters: Adapters) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    result = await measure_quickly(adapters(engine), deployment(context=128))
    assert [record.asked.prompt_tokens for record in result.records] == [32, 78]
    assert all((sample.prompt_tokens + OUTPUT_TOKENS) < 128 for sample in result.samples)


async def test_a_deployment_that_only_embeds_is_measured_by_embeddings(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="openai")
    engine.always(chat(prompt_tokens=30))
    only = deployment(engine="openai", capabilities=frozenset({Capability.EMBEDDINGS}))
    result = await measure_quickly(adapters(engine, "openai"), only)
    assert {request.path for request in engine.requests} == {"/v1/embeddings"}
    assert len(result.samples) == len(LENGTHS)
    assert all(sample.prefill_s > 0.0 and sample.tpot_s == 0.0 for sample in result.samples)
    assert all(record.output_normal for record in result.records)


async def test_output_that_is_not_normal_is_told_apart(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(chat(["!"] * OUTPUT_TOKENS, prompt_tokens=30))
    result = await measure_quickly(adapters(engine), deployment(), budget_s=0.0)
    assert [(record.output_normal, record.faults) for record in result.records] == [(False, ("loop",))] * 2


async def test_an_engine_that_always_stops_after_one_token_is_not_called_measured(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(chat(["one"], prompt_tokens=30))
    result = await measure_quickly(adapters(engine), deployment())
    assert result.samples == ()
    assert result.failed == "no decode speed: the answers had one token"


async def test_the_record_has_what_was_configured_beside_what_was_found_and_the_peak_memory(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    readings = iter(range(100, 200))
    adapter = adapters(engine, precision=Precision.INT8)
    result = await measure_quickly(adapter, deployment(), memory=lambda: next(readings))
    assert {(record.asked.precision, record.precision) for record in result.records} == {("int8", Precision.INT4)}
    assert [record.peak_memory_bytes for record in result.records] == [115, 116, 117, 119], "the last of each length"


async def test_progress_is_told_from_the_warm_up_to_the_end(
    scripted: Callable[..., ScriptedEngine], adapters: Adapters
) -> None:
    engine, told = scripted(kind="llamacpp"), []
    engine.always(answer)
    await measure_quickly(adapters(engine), deployment(), progress=lambda *step: told.append(step))
    assert told[0] == ("smol-int4", 0, len(LENGTHS) * RUNS, "warming up")
    assert told[-1] == ("smol-int4", len(LENGTHS) * RUNS, len(LENGTHS) * RUNS, "measured")
    assert [step[1] for step in told[1:-1]] == list(range(len(LENGTHS) * RUNS))


@pytest.mark.llamacpp
async def test_a_real_llama_cpp_is_measured_and_the_next_start_needs_no_measurement(
    llamacpp: LlamaServer, adapters: Adapters, tmp_path: Any
) -> None:
    adapter = adapters(llamacpp)
    description = await adapter.describe()
    (model,) = description.models
    real = deployment(engine_model=model.engine_model, context=model.context, capabilities=model.capabilities)
    # A seed, since after one prompt in two hundred so small a model writes half a character.
    result = await measure_quickly(adapter, real, seed=7)
    assert not result.failed
    for record in result.records:
        assert record.output_tokens == OUTPUT_TOKENS
        assert record.uncached_tokens == record.prompt_tokens
        assert record.output_normal, record.faults
        assert record.engine_prefill_s is not None
        assert record.ttft_s is not None
        assert 0 < record.engine_prefill_s < record.ttft_s
        assert record.prompt_tokens == pytest.approx(record.asked.prompt_tokens, rel=0.35)
    store = Store(tmp_path / "records.sqlite3")
    store.add(*result.records)
    store.close()
    second = Store(tmp_path / "records.sqlite3")
    assert second.samples(real.fingerprint) == list(result.samples)
    second.close()
