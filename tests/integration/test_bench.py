"""A benchmark: what it sends, what it keeps, what it does when an engine fails and when it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import chat, hang, stall, status, text
from engines.signals import Gate
from measurements import deployment

import measure.bench
import measure.grid
import measure.outside
from adapters.base import Adapter, Endpoint
from adapters.errors import Unreachable
from adapters.registry import create
from measure.async_store import AsyncStore
from measure.bench import Bench
from measure.cell import Rules
from measure.grid import Grid
from measure.last import since_last
from measure.outside import OutsideTraffic
from measure.quick import LENGTHS
from measure.records import Kind
from measure.step import Step
from measure.subject import Subject
from measure.traffic import Disturbed
from measure.unfinished import finish, take_up
from policies.types import Capability, Deployment

WORDS = ("Copper", "gets", "warm", "faster", "than", "iron", "so", "cooks", "trust", "old", "pans")
SMALL = Grid(prompt_tokens=(64,), output_tokens=(4,), concurrency=1)
RULES = Rules(runs=3)


async def answer(exchange: Exchange) -> None:
    """A right answer of the wanted length, whose token count grows with the prompt: four bytes a token."""
    asked = exchange.request.json
    words = [f"{word} " for word in WORDS[: asked["max_tokens"]]]
    await chat(words, prompt_tokens=len(asked["prompt"].encode()) // 4)(exchange)


async def nobody() -> str:
    return ""


class Bed:
    """A benchmark's surroundings: a store, and scripted engines as subjects."""

    def __init__(self, store: AsyncStore) -> None:
        self.store = store
        self.steps: list[Step] = []
        self.live = ""
        self._adapters: list[Adapter] = []

    def subject(self, engine: ScriptedEngine, **fields: Any) -> Subject:
        adapter = create(engine.kind, Endpoint(name="engine", url=engine.url))
        self._adapters.append(adapter)
        return Subject(
            deployment(engine=engine.kind, **fields),
            connect=lambda: adapter,
            pid=lambda: None,
            traffic=OutsideTraffic(nobody, self._live, lambda reason: None),
            settings={"batch": "128"},
        )

    async def _live(self) -> str:
        return self.live

    def bench(self, grid: Grid = SMALL, rules: Rules = RULES, name: str = "bench-1") -> Bench:
        return Bench(name, self.store, grid, rules, self.steps.append)

    async def aclose(self) -> None:
        for adapter in self._adapters:
            await adapter.aclose()
        await self.store.aclose()


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr(measure.bench, "_RECOVERY_PAUSE_S", 0.01)
    monkeypatch.setattr(measure.outside, "LOOK_S", 0.02)
    monkeypatch.setattr(measure.outside, "_SETTLE_S", 0.001)
    bed = Bed(await AsyncStore.open(None))
    yield bed
    await bed.aclose()


Engines = Callable[..., ScriptedEngine]


def prompts(engine: ScriptedEngine) -> list[str]:
    return [request.json["prompt"] for request in engine.requests]


async def test_each_cell_has_a_warm_up_that_does_not_count_and_its_runs(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    bench = bed.bench()
    await bench.measure_grids([bed.subject(engine)])
    (record,) = bench.records
    assert len(engine.requests) == 1 + RULES.runs
    assert [run.round for run in record.runs] == [0, 1, 2]
    assert record.runs[0].begun_s == 0.0
    assert record.runs[1].begun_s > record.runs[0].total_s
    assert (record.kind, record.bench, record.settings, record.asked.runs) == (
        *(Kind.GRID, "bench-1", {"batch": "128"}),
        3,
    )
    assert record.machine is not None
    assert record.output_normal, record.faults
    assert await bed.store.records() == bench.records


async def test_an_engine_is_not_measured_while_the_one_before_it_still_keeps_a_core_busy(
    scripted: Engines, bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: dict[str, list[float]] = {"lingers": [], "next": []}

    def noting(name: str) -> Callable[[Exchange], Awaitable[None]]:
        async def note(exchange: Exchange) -> None:
            times[name].append(time.monotonic())
            await answer(exchange)

        return note

    lingers, following = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    lingers.always(noting("lingers"))
    following.always(noting("next"))
    subjects = [bed.subject(lingers), bed.subject(following, fingerprint="another")]
    monkeypatch.setattr(type(subjects[0].connect()), "lingers_s", 0.3)
    await bed.bench().measure_grids(subjects)
    assert times["next"][0] >= times["lingers"][-1] + 0.3


async def test_the_warm_up_teaches_how_long_a_token_is(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    bench = bed.bench(Grid(prompt_tokens=(256,), output_tokens=(4,), concurrency=1))
    await bench.measure_grids([bed.subject(engine)])
    sizes = [len(prompt.encode()) for prompt in prompts(engine)]
    assert sizes[0] < 230 * 4
    assert bench.records[0].prompt_tokens == pytest.approx(256, abs=2)


async def test_an_engine_that_counts_nonsense_is_not_sent_ever_longer_prompts(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(chat(["one ", "two ", "three ", "four"], prompt_tokens=1))
    grid = Grid(prompt_tokens=(64, 128, 256), output_tokens=(4,), concurrency=1)
    await bed.bench(grid).measure_grids([bed.subject(engine)])
    assert max(len(prompt.encode()) for prompt in prompts(engine)) <= 256 * 16


async def test_the_requests_of_a_round_run_at_the_same_time_and_begin_differently(
    scripted: Engines, bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure.grid, "SLOWER", 1e9)
    engine, waiting = scripted(kind="llamacpp"), [0]
    gates = [Gate(), Gate()]

    async def together(exchange: Exchange) -> None:
        waiting[0] += 1
        gate = gates[0]
        if waiting[0] == 4:
            waiting[0], gates[:] = 0, [gates[1], Gate()]
            gate.open()
        await gate.pass_through()
        await answer(exchange)

    # Alone first: a warm-up and three runs; the same two at once; then four, who all wait for each other.
    engine.next(*[answer] * (4 + 2 * 4))
    engine.always(together)
    bench = bed.bench(Grid(prompt_tokens=(64,), output_tokens=(4,), concurrency=4), Rules(runs=3))
    await bench.measure_grids([bed.subject(engine)])
    assert [record.asked.concurrency for record in bench.records] == [1, 2, 4]
    four = bench.records[-1]
    assert [run.round for run in four.runs] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert four.throughput_per_s is not None
    beginnings = [prompt[0] for prompt in prompts(engine)]
    assert len(set(beginnings)) == len(beginnings)


async def test_a_repeated_prefix_is_the_same_and_may_stay_in_the_cache(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    bench = bed.bench(Grid(prompt_tokens=(256,), output_tokens=(4,), concurrency=1, prefix_cache=True))
    await bench.measure_grids([bed.subject(engine)])
    first, *others = prompts(engine)[1:]
    for other in others:
        assert other[:700] == first[:700]
        assert other != first
    assert all("cache_prompt" not in request.json for request in engine.requests)
    assert bench.records[0].asked.prefix_tokens == 240
    assert bench.records[0].speed is None


async def test_a_failed_cell_is_recorded_with_its_cause_and_the_rest_goes_on(scripted: Engines, bed: Bed) -> None:
    async def out_of_memory(exchange: Exchange) -> None:
        long = len(exchange.request.json["prompt"]) > 500
        error = {"error": {"message": "out of memory", "type": "server_error"}}
        await (status(500, error) if long else answer)(exchange)

    engine = scripted(kind="llamacpp")
    engine.always(out_of_memory)
    bench = bed.bench(Grid(prompt_tokens=(64, 256), output_tokens=(4, 8), concurrency=1))
    await bench.measure_grids([bed.subject(engine)])
    by_shape = {(r.asked.prompt_tokens, r.asked.output_tokens): r for r in bench.records}
    assert [bool(by_shape[shape].failed) for shape in ((64, 4), (64, 8), (256, 4), (256, 8))] == [
        *(False, False),
        *(True, True),
    ]
    failed = by_shape[256, 4]
    assert "out of memory" in failed.failed
    assert "the engine answered again after" in failed.failed
    assert failed.ttft_s is None
    assert not bench.given_up


async def test_an_engine_that_does_not_come_back_is_left_and_the_next_one_is_measured(
    scripted: Engines, bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure.bench, "RECOVERY_LIMIT_S", 0.05)
    broken, sound = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    broken.always(status(500))
    sound.always(answer)
    bench = bed.bench(Grid(prompt_tokens=(64, 128), output_tokens=(4,), concurrency=1))
    await bench.measure_grids([bed.subject(broken, name="broken"), bed.subject(sound, name="sound")])
    assert bench.given_up == {"broken": "the engine did not answer again within 0.05 s"}
    assert [(record.deployment, bool(record.failed)) for record in bench.records] == [
        *(("broken", True), ("sound", False), ("sound", False)),
    ]


async def test_an_engine_that_is_gone_is_left(bed: Bed, scripted: Engines) -> None:
    def gone() -> Adapter:
        raise Unreachable("it ended", engine="engine")

    bench = bed.bench()
    traffic = OutsideTraffic(nobody, nobody, lambda reason: None)
    await bench.measure_grids([Subject(deployment(), connect=gone, pid=lambda: None, traffic=traffic)])
    assert bench.given_up == {"smol-int4": "it ended"}
    assert bench.records == []


async def test_a_cell_that_hangs_ends_with_its_time(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.next(answer, answer, hang())
    engine.always(answer)
    bench = bed.bench(rules=Rules(runs=3, cell_limit_s=0.5))
    await bench.measure_grids([bed.subject(engine)])
    (record,) = bench.records
    assert record.failed.startswith("TimedOut: the cell's 0.5 s are over (after 1 of 3 runs)")
    await engine.requests[2].left.wait()


async def test_a_cell_whose_time_ends_after_three_runs_stands(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.next(*[answer] * 4, hang())
    bench = bed.bench(rules=Rules(runs=5, cell_limit_s=0.5))
    await bench.measure_grids([bed.subject(engine)])
    (record,) = bench.records
    assert not record.failed
    assert len(record.runs) == 3


async def test_when_one_of_several_requests_fails_the_others_are_ended(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.next(*[answer] * 4, stall(after=1), status(503))
    engine.always(answer)
    bench = bed.bench(Grid(prompt_tokens=(64,), output_tokens=(4,), concurrency=2))
    await bench.measure_grids([bed.subject(engine)])
    alone, two = bench.records
    assert not alone.failed
    assert two.failed
    stalled = next(request for request in engine.requests[4:6] if not request.answered.is_set())
    await stalled.left.wait()


async def test_an_interrupted_benchmark_goes_on_where_it_was(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    grid = Grid(prompt_tokens=(64, 128, 256), output_tokens=(4,), concurrency=1)
    engine.next(*[answer] * (4 + 2), stall(after=1))
    mark = await take_up(bed.store)
    assert not mark.resumed
    running = asyncio.create_task(bed.bench(grid, name=mark.name).measure_grids([bed.subject(engine)]))
    request = await engine.received(6)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await request.left.wait()
    assert [record.asked.prompt_tokens for record in await bed.store.records()] == [64]

    engine.always(answer)
    mark_after = await take_up(bed.store)
    assert (mark_after.name, mark_after.resumed) == (mark.name, True)
    bench = bed.bench(grid, name=mark_after.name)
    await bench.measure_grids([bed.subject(engine)])
    assert [record.asked.prompt_tokens for record in bench.records] == [64, 128, 256]
    assert len(engine.requests) == 7 + 2 * 4
    assert [step.kept for step in bed.steps if step.record is not None] == [False, True, False, False]
    await finish(bed.store)
    assert (await take_up(bed.store)).name != mark.name


async def test_nothing_is_kept_for_other_askings_or_another_fingerprint(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    subject = bed.subject(engine)
    await bed.bench().measure_grids([subject])
    await bed.bench(rules=Rules(runs=4)).measure_grids([subject])
    await bed.bench(rules=Rules(runs=4)).measure_grids([bed.subject(engine, fingerprint="after an update")])
    assert [step.kept for step in bed.steps if step.record is not None] == [False, False, False]


async def test_again_begins_anew(bed: Bed) -> None:
    first = await take_up(bed.store)
    assert (await take_up(bed.store)).name == first.name
    again = await take_up(bed.store, again=True)
    assert again.name != first.name
    assert not again.resumed


async def test_an_interruption_of_another_day_is_forgotten(bed: Bed) -> None:
    await bed.store.save_unfinished_bench({"name": "old", "begun": "2020-01-01T00:00:00+00:00"})
    assert not (await take_up(bed.store)).resumed
    await bed.store.save_unfinished_bench({"name": "odd", "begun": "some day"})
    assert not (await take_up(bed.store)).resumed


async def test_a_round_gives_way_to_live_traffic_and_is_repeated(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.next(answer, stall(after=1))
    engine.always(answer)
    bench = bed.bench()
    measuring = asyncio.create_task(bench.measure_grids([bed.subject(engine)]))
    request = await engine.received(1)
    bed.live = "1 request at engine"
    await request.left.wait()
    bed.live = ""
    await measuring
    assert len(bench.records[0].runs) == 3
    assert not bench.records[0].disturbed


async def test_without_quiet_it_ends_and_what_is_done_is_kept(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    bed.live = "1 request at engine"
    with pytest.raises(Disturbed):
        await bed.bench(rules=Rules(runs=3, idle_limit_s=0.05)).measure_grids([bed.subject(engine)])
    assert engine.requests == []


async def test_told_not_to_wait_it_measures_beside_live_traffic_and_says_so(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    bed.live = "1 request at engine"
    bench = bed.bench(rules=Rules(runs=3, waits=False))
    await bench.measure_grids([bed.subject(engine)])
    assert bench.records[0].disturbed


async def test_an_engine_that_keeps_sums_instead_of_timings_is_asked_for_their_difference(
    scripted: Engines, bed: Bed
) -> None:
    engine, done = scripted(kind="vllm"), [0]

    def sums() -> str:
        n = done[0]
        phases = {"queue": 0.1 * n, "prefill": 0.5 * n, "decode": 2.0 * n}
        lines = [f'vllm:request_{name}_time_seconds_sum{{model="m"}} {value}' for name, value in phases.items()]
        return "\n".join([*lines, f'vllm:request_queue_time_seconds_count{{model="m"}} {n}', ""])

    async def metrics(exchange: Exchange) -> None:
        await text(sums())(exchange)

    async def counted(exchange: Exchange) -> None:
        done[0] += 1
        await answer(exchange)

    engine.routes["GET /metrics"] = metrics
    engine.always(counted)
    bench = bed.bench()
    await bench.measure_grids([bed.subject(engine)])
    (record,) = bench.records
    assert record.engine_queue_s == pytest.approx(0.1)
    assert record.engine_prefill_s == pytest.approx(0.5)
    assert record.engine_decode_s == pytest.approx(2.0)
    assert "TTFT" in record.disagreement


async def test_the_length_is_what_the_engine_wrote_where_it_cannot_be_forced(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="openai")
    engine.always(chat(["Only ", "three ", "words"], prompt_tokens=60))
    bench = bed.bench(Grid(prompt_tokens=(64,), output_tokens=(32,), concurrency=1))
    await bench.measure_grids([bed.subject(engine, capabilities=frozenset({Capability.CHAT}))])
    (record,) = bench.records
    assert (record.asked.output_tokens, record.asked.forced, record.output_tokens) == (32, False, 3)
    assert record.output_normal
    assert "ignore_eos" not in engine.requests[0].json


async def test_the_quick_measurement_belongs_to_the_benchmark_too(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    bench = bed.bench()
    await bench.measure_quickly([bed.subject(engine)])
    assert {(record.kind, record.bench) for record in bench.records} == {(Kind.QUICK, "bench-1")}
    assert len(bench.records) == len(LENGTHS)


async def test_what_changed_since_last_time_is_found_cell_by_cell(scripted: Engines, bed: Bed) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(answer)
    await bed.bench(name="first").measure_grids([bed.subject(engine)])
    after: Deployment = bed.subject(engine, fingerprint="after an update").deployment
    grid = Grid(prompt_tokens=(64, 128), output_tokens=(4,), concurrency=1)
    await bed.bench(grid, name="second").measure_grids([bed.subject(engine, fingerprint=after.fingerprint)])
    same, new = await since_last(bed.store, "second")
    assert same.before is not None
    assert (same.record.bench, same.before.bench) == ("second", "first")
    assert same.record.cell == same.before.cell
    assert new.before is None
