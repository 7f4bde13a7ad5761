"""The pair measurement: one deployment is timed while another one, or its own engine, is really at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from engines.llama import LlamaServer
from engines.scripted import Exchange, Received, ScriptedEngine
from engines.scripts import chat, cut, stall, status
from engines.signals import Gate
from measurements import deployment

from adapters.base import Endpoint
from adapters.registry import create
from measure.pairs import OUTPUT_TOKENS, RUNS, Member, measure_beside, neighbours
from measure.records import Kind
from measure.store import Store
from measure.traffic import Traffic
from policies.types import Capability, Hardware

Members = Callable[..., Member]
Engines = Callable[..., ScriptedEngine]

answer = chat(["word "] * OUTPUT_TOKENS, prompt_tokens=64)


@pytest.fixture
async def members() -> AsyncIterator[Members]:
    made: list[Member] = []

    def make(engine: ScriptedEngine | LlamaServer, name: str = "timed", **fields: object) -> Member:
        adapter = create("llamacpp", Endpoint(name=name, url=engine.url))
        made.append(Member(adapter, deployment(name, endpoint=name, **fields)))
        return made[-1]

    yield make
    for member in made:
        await member.adapter.aclose()


class Neighbour:
    """Plays the neighbour: answers its warm-up, decodes until its client leaves, prefills until the other was timed."""

    def __init__(self, engine: ScriptedEngine, timed: ScriptedEngine) -> None:
        self.engine = engine
        self.doing = ""
        self.seen: list[str] = []
        """What it did each time that the other was asked something."""
        self._timed = Gate()
        engine.always(self._work)
        timed.always(self._note)

    def requests(self, max_tokens: Callable[[int], bool]) -> list[Received]:
        return [request for request in self.engine.requests if max_tokens(request.json["max_tokens"])]

    async def _note(self, exchange: Exchange) -> None:
        self.seen.append(self.doing)
        await answer(exchange)
        if self.doing == "prefilling":
            self._timed.open()

    async def _work(self, exchange: Exchange) -> None:
        tokens = exchange.request.json["max_tokens"]
        if tokens == OUTPUT_TOKENS:
            await answer(exchange)
        elif tokens > 1:
            self.doing = "decoding"
            await stall(after=3)(exchange)
        else:
            self.doing = "prefilling"
            await chat(["one"], prompt_tokens=512, gate=self._timed)(exchange)


async def test_the_timed_request_runs_while_the_neighbour_decodes_and_while_it_prefills(
    scripted: Engines, members: Members
) -> None:
    timed, other = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    neighbour = Neighbour(other, timed)
    records = await measure_beside(members(timed), members(other, "neighbour"))
    assert neighbour.seen[:2] == ["", ""]  # the warm-up and the first run alone
    assert neighbour.seen[2::3] == ["decoding"] * RUNS
    assert neighbour.seen[3::3] == ["prefilling"] * RUNS
    assert [record.beside and record.beside.activity for record in records] == ["decoding", "prefilling"]
    for record in records:
        assert record.kind is Kind.PAIR
        assert len(record.runs) == record.asked.runs == RUNS
        assert record.beside is not None
        assert len(record.beside.alone) == RUNS
        assert record.deployment == "timed"
        assert record.pair is not None
        assert record.pair.neighbour == "other"
        assert record.pair.prefill_factor > 0
        assert record.pair.decode_factor > 0


async def test_a_pair_that_takes_too_long_is_timed_once_beside_each_and_no_more(
    scripted: Engines, members: Members
) -> None:
    timed, other = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    neighbour = Neighbour(other, timed)
    records = await measure_beside(members(timed), members(other, "neighbour"), enough_s=0)
    assert neighbour.seen == ["", "", "decoding", "prefilling"]
    for record in records:
        assert len(record.runs) == 1
        assert record.beside is not None
        assert len(record.beside.alone) == 1
        assert record.failed == ""


async def test_the_neighbour_is_left_quiet_its_stream_closed_and_its_prefill_ended(
    scripted: Engines, members: Members
) -> None:
    timed, other = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    neighbour = Neighbour(other, timed)
    await measure_beside(members(timed), members(other, "neighbour"))
    for decoding in neighbour.requests(lambda tokens: tokens > OUTPUT_TOKENS):
        await decoding.left.wait()
    for prefilling in neighbour.requests(lambda tokens: tokens == 1):
        await prefilling.answered.wait()
        assert not prefilling.left.is_set()


async def test_within_one_engine_the_neighbour_is_called_the_same_and_the_pair_is_remembered(
    scripted: Engines, members: Members
) -> None:
    engine = scripted(kind="llamacpp")

    async def both(exchange: Exchange) -> None:
        tokens = exchange.request.json["max_tokens"]
        await (stall(after=3) if tokens > OUTPUT_TOKENS else answer)(exchange)

    engine.always(both)
    member = members(engine)
    records = await measure_beside(member, member)
    store = Store(None)
    store.add(*records)
    mark = member.deployment.fingerprint
    assert {(pair.neighbour, pair.activity) for pair in store.pairs(mark)} == {
        ("same", "decoding"),
        ("same", "prefilling"),
    }
    assert store.paired(mark, mark)
    store.close()


@pytest.mark.parametrize("who", ["timed", "neighbour"])
async def test_a_failing_engine_is_a_record_with_its_cause(scripted: Engines, members: Members, who: str) -> None:
    engines = {name: scripted(kind="llamacpp") for name in ("timed", "neighbour")}
    for engine in engines.values():
        engine.always(answer)
    engines[who].next(answer)
    engines[who].always(status(500, {"error": {"message": "out of memory", "type": "server_error"}}))
    timed, neighbour = (members(engine, name) for name, engine in engines.items())
    (record,) = await measure_beside(timed, neighbour)
    assert "out of memory" in record.failed
    assert record.pair is None


async def test_a_neighbour_that_fails_while_the_other_is_timed_is_the_cause_on_record(
    scripted: Engines, members: Members
) -> None:
    timed, other = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    timed.always(answer)
    other.next(answer, cut(after=2))
    other.always(cut(after=0))
    # The first run may be over before the fault is seen.
    *_, record = await measure_beside(members(timed), members(other, "neighbour"))
    assert "Interrupted" in record.failed or "Broken" in record.failed
    assert record.pair is None


async def test_live_traffic_ends_both_requests_and_the_pair_is_left_for_later(
    scripted: Engines, members: Members
) -> None:
    timed, other, traffic = scripted(kind="llamacpp"), scripted(kind="llamacpp"), Traffic()
    timed.next(answer, answer)
    timed.always(stall(after=1))
    other.next(answer)
    other.always(stall(after=1))
    measuring = asyncio.create_task(
        measure_beside(members(timed), members(other, "neighbour"), traffic=traffic, idle_limit_s=0.01)
    )
    beside = await timed.received(2)
    traffic.begin()
    await beside.left.wait()
    await other.requests[1].left.wait()
    assert await measuring == ()


async def test_what_was_timed_before_live_traffic_came_counts_once_there_is_a_run_of_everything(
    scripted: Engines, members: Members
) -> None:
    timed, other, traffic = scripted(kind="llamacpp"), scripted(kind="llamacpp"), Traffic()
    timed.next(*[answer] * 4)

    async def live(exchange: Exchange) -> None:
        traffic.begin()
        await stall(after=1)(exchange)

    timed.always(live)
    other.always(chat(["word "] * 300, prompt_tokens=64))
    records = await measure_beside(members(timed), members(other, "neighbour"), traffic=traffic, idle_limit_s=0.01)
    assert [len(record.runs) for record in records] == [1, 1]
    assert all(record.pair is not None for record in records)


async def test_cancelling_ends_both_requests(scripted: Engines, members: Members) -> None:
    timed, other = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    timed.next(answer, answer)
    timed.always(stall(after=1))
    other.next(answer)
    other.always(stall(after=1))
    measuring = asyncio.create_task(measure_beside(members(timed), members(other, "neighbour")))
    beside = await timed.received(2)
    measuring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await measuring
    await beside.left.wait()
    await other.requests[1].left.wait()


def test_each_is_timed_beside_itself_and_beside_the_next_one_on_its_hardware() -> None:
    a, b, c = (deployment(name) for name in "abc")
    assert list(neighbours([c, a, b])) == [(a, a), (a, b), (b, b), (b, c), (c, c), (c, a)]
    assert (a, c) in list(neighbours([a, b, c], others=2))


def test_who_cannot_disturb_each_other_is_no_pair() -> None:
    gpu = deployment("gpu", hardware=Hardware("here", frozenset({"here/gpu"})))
    one_slot = deployment("one slot", slots=1)
    embeds = deployment("embeds", capabilities=frozenset({Capability.EMBEDDINGS}))
    hosted = deployment("hosted", hardware=Hardware("elsewhere"), slots=1)
    assert list(neighbours([gpu, one_slot, embeds, hosted])) == [(gpu, gpu)]


def test_two_models_of_one_engine_instance_are_no_pair() -> None:
    large, small = (deployment(name, endpoint="ollama", slots=1) for name in ("large", "small"))
    assert list(neighbours([large, small])) == []


@pytest.mark.llamacpp
async def test_a_real_llama_cpp_is_timed_beside_itself(llamacpp: LlamaServer, members: Members) -> None:
    member = members(llamacpp)
    (model,) = (await member.adapter.describe()).models
    real = Member(member.adapter, deployment(engine_model=model.engine_model, context=model.context))
    records = await measure_beside(real, real, seed=1)  # with prompts by chance so small a model may say nothing
    assert [record.failed for record in records] == ["", ""]
    for record in records:
        assert record.pair is not None
        assert record.pair.prefill_factor > 0
        assert record.pair.decode_factor > 0
        assert record.output_normal, record.faults
