"""Who runs in a step: the same tokens whatever the batching, nobody starves, and one request's trouble is its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_runner import EOS, VOCABULARY, ToyRunner, alone, sequence

from engine.block_manager import BlockManager
from engine.errors import ContextExceeded, OutOfMemory, Poisoned
from engine.request import Finish, Plan, Result, Sampling, Sequence
from engine.scheduler import OVERTAKING, RECOVERY, Limits, Outcome, Scheduler


class Bench:
    """A scheduler over the toy model. Everything is checked after every operation."""

    def __init__(
        self, blocks: int = 64, block_size: int = 4, seats: int = 8, budget: int = 64, memory: int | None = None
    ) -> None:
        self.blocks = BlockManager(blocks, block_size)
        self.scheduler = Scheduler(self.blocks, Limits(seats, budget, blocks * block_size), [EOS])
        self.runner = ToyRunner(blocks, block_size, memory)
        self.ended: dict[int, Outcome] = {}

    def add(self, *sequences: Sequence) -> None:
        for one in sequences:
            self.scheduler.add(one)

    def plan(self) -> Plan:
        plan = self.scheduler.plan()
        self.check()
        assert plan.tokens <= self.scheduler.budget
        assert len({row.sequence.id for row in plan.rows}) == len(plan.rows)
        assert bool(plan.rows) == bool(self.scheduler.running or self.scheduler.waiting)
        return plan

    def step(self) -> Plan:
        plan = self.plan()
        try:
            outcomes = self.scheduler.commit(plan, self.runner.run(plan))
        except OutOfMemory:
            alone = self.scheduler.shrink(plan)
            if alone:
                self.scheduler.remove(alone)
        else:
            self.ended.update({one.sequence.id: one for one in outcomes if one.finish})
        self.check()
        return plan

    def run(self, most: int = 2000) -> int:
        for steps in range(most):
            if not (self.scheduler.running or self.scheduler.waiting):
                assert self.blocks.free == self.blocks.blocks
                return steps
            self.step()
        raise AssertionError("it does not come to an end")

    def check(self) -> None:
        self.blocks.check(self.scheduler.running)
        assert not any(one.blocks or one.computed for one in self.scheduler.waiting)


def finish(bench: Bench, one: Sequence) -> Finish | None:
    return bench.ended[one.id].finish


def endless(number: int, prompt: list[int], tokens: int = 8, **more: object) -> Sequence:
    return sequence(number, prompt, Sampling(max_tokens=tokens, ignore_eos=True), **more)


@dataclass(frozen=True)
class Arrival:
    """One request of a workload: when it comes, and after how many steps it is cancelled."""

    step: int
    prompt: list[int]
    sampling: Sampling
    priority: int
    pools: bool
    cancelled: int | None
    guesses: list[int] = field(default_factory=list)


SHARED = ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 5, 6, 6, 6, 6, 6])
prompts = st.builds(
    lambda shared, length, rest: [*shared[:length], *rest],
    st.sampled_from(SHARED),
    st.integers(0, 12),
    st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12),
)
arrivals = st.builds(
    Arrival,
    step=st.integers(0, 20),
    prompt=prompts,
    sampling=st.builds(
        Sampling,
        max_tokens=st.integers(1, 14),
        ignore_eos=st.booleans(),
        min_tokens=st.integers(0, 4),
        stop_token_ids=st.lists(st.integers(0, VOCABULARY - 1), max_size=2).map(tuple),
    ),
    priority=st.integers(-1, 1),
    pools=st.sampled_from([False, False, False, True]),
    cancelled=st.sampled_from([None, None, None, 0, 1, 5]),
    guesses=st.lists(st.integers(0, 3), max_size=6),
)


def drafts(answer: list[int], one: Sequence, guesses: list[int]) -> list[int]:
    """As many guesses as the list says at this place of the answer, the last of them wrong."""
    count = guesses[one.generated % len(guesses)] if guesses else 0
    right = answer[one.generated : one.generated + count]
    return [*right[:-1], *((token + 1) % VOCABULARY for token in right[-1:])] if one.generated % 2 else right


@given(
    work=st.lists(arrivals, max_size=14),
    blocks=st.integers(8, 40),
    block_size=st.sampled_from([1, 2, 4, 8]),
    seats=st.integers(1, 6),
    spare=st.integers(0, 30),
    memory=st.sampled_from([None, None, 12, 3]),
)
def test_every_answer_is_what_it_is_alone_whatever_runs_beside(
    work: list[Arrival], blocks: int, block_size: int, seats: int, spare: int, memory: int | None
) -> None:
    bench = Bench(max(blocks, -(-26 // block_size)), block_size, seats, seats + spare, memory)
    made: dict[int, tuple[Sequence, Arrival, list[int]]] = {}
    step = 0
    while step <= 20 or bench.scheduler.running or bench.scheduler.waiting:
        for number, arrival in enumerate(work):
            if arrival.step == step:
                one = sequence(number, arrival.prompt, arrival.sampling, priority=arrival.priority, pools=arrival.pools)
                made[number] = (one, arrival, alone(arrival.prompt, arrival.sampling, number, bench.scheduler.context))
                bench.add(one)
            if arrival.cancelled is not None and arrival.step + arrival.cancelled == step:
                bench.scheduler.remove(made[number][0])
                bench.check()
        for one in bench.scheduler.decoding():
            _, arrival, answer = made[one.id]
            one.drafts = drafts(answer, one, arrival.guesses)
        bench.step()
        step += 1
        assert step < 3000, "it does not come to an end"
    for one, arrival, answer in made.values():
        if arrival.cancelled is None:
            assert one.id in bench.ended
        if arrival.pools:
            assert one.id not in bench.ended or finish(bench, one) is Finish.STOP
        elif one.id in bench.ended:
            assert list(one.output) == answer
        else:
            assert list(one.output) == answer[: one.generated]
    assert bench.blocks.free == bench.blocks.blocks


def test_an_answer_ends_at_the_models_end_at_a_stop_token_at_its_length_and_at_the_context() -> None:
    prompt = [3, 1, 4, 1, 5]
    free = alone(prompt, Sampling(max_tokens=40, ignore_eos=True), 1, 1000)
    stop = free[5]
    bench = Bench(seats=4)
    by_stop = sequence(1, prompt, Sampling(max_tokens=40, ignore_eos=True, stop_token_ids=(stop,)))
    bench.add(by_stop)
    bench.run()
    assert finish(bench, by_stop) is Finish.STOP
    assert list(by_stop.output) == free[: free.index(stop) + 1]

    later = sequence(1, prompt, Sampling(max_tokens=40, ignore_eos=True, stop_token_ids=(stop,), min_tokens=6))
    by_length = sequence(1, prompt, Sampling(max_tokens=3, ignore_eos=True))
    for one in (later, by_length):
        bench.add(one)
        bench.run()
    assert len(later.output) > 6
    assert finish(bench, by_length) is Finish.LENGTH
    assert list(by_length.output) == free[:3]

    small = Bench(blocks=4, block_size=4)
    by_context = sequence(1, prompt, Sampling(max_tokens=100, ignore_eos=True))
    small.add(by_context)
    small.run()
    assert finish(small, by_context) is Finish.LENGTH
    assert len(by_context.tokens) == 16


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused_with_both_numbers() -> None:
    bench = Bench(blocks=4, block_size=4)
    with pytest.raises(ContextExceeded, match="16 tokens, the context holds 16"):
        bench.add(sequence(1, [1] * 16))
    bench.add(sequence(2, [1] * 15), sequence(3, [1] * 16, pools=True))
    bench.run()


def test_a_budget_that_does_not_give_each_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="do not suffice"):
        Limits(max_sequences=8, token_budget=7, context=100)


def test_answers_go_on_in_every_step_while_a_long_prompt_is_read() -> None:
    bench = Bench(budget=10)
    answers = [endless(number, [number], 30) for number in range(3)]
    bench.add(*answers)
    bench.step()
    bench.add(endless(9, list(range(1, 29)) * 2))
    for _ in range(8):
        plan = bench.step()
        assert [row.sequence for row in plan.rows[:3]] == answers
        assert plan.tokens == 10
    bench.run()


def test_a_short_prompt_is_read_beside_a_long_one_that_came_before() -> None:
    bench = Bench(budget=16)
    long, short = endless(1, list(range(1, 29)) * 4), endless(2, [7, 7, 7, 7])
    bench.add(long, short)
    plan = bench.step()
    assert {row.sequence.id: row.count for row in plan.rows} == {1: 12, 2: 4}
    assert short.generated == 1


def test_a_long_prompt_gets_half_of_each_step_however_many_short_ones_come() -> None:
    bench = Bench(blocks=200, budget=16, seats=8)
    long = endless(0, list(range(1, 29)) * 4)
    bench.add(long)
    for number in range(1, 400):
        bench.add(endless(number, [number // 29 + 1, number % 29 + 1] * 8, 1))
        bench.step()
        if long.generated:
            break
    assert number <= 112 / 7 + 1  # half of what is left beside one that decodes


def test_the_first_to_come_is_never_preempted_and_the_last_is_preempted_first() -> None:
    bench = Bench(blocks=12, block_size=2, budget=64)
    crowd = [endless(number, [number + 1] * 3, 16) for number in range(4)]
    bench.add(*crowd)
    preempted: list[int] = []
    while bench.scheduler.running or bench.scheduler.waiting:
        running = [one.id for one in bench.scheduler.running]
        plan = bench.step()
        preempted += [one.id for one in plan.preempted]
        if plan.preempted and running:
            assert plan.preempted[0].id == max(running)
    assert preempted
    assert crowd[0].preemptions == 0
    assert bench.scheduler.preemptions == len(preempted) == sum(one.preemptions for one in crowd)
    assert [list(one.output) for one in crowd] == [alone([n + 1] * 3, crowd[n].sampling, n, 24) for n in range(4)]


def test_what_a_preempted_sequence_had_computed_is_found_again() -> None:
    bench = Bench(blocks=16, block_size=2, budget=64, seats=1)
    low = endless(1, [5] * 8, 10, priority=1)
    bench.add(low)
    for _ in range(4):
        bench.step()
    positions = bench.runner.positions
    urgent = endless(2, [6, 6, 6], 2)
    bench.add(urgent)
    assert bench.step().preempted == (low,)
    bench.run()
    assert bench.runner.positions - positions < 3 + 2 + 10
    assert list(low.output) == alone([5] * 8, low.sampling, 1, 32)
    assert low.cached == 0


def test_a_better_priority_goes_first_and_takes_the_seat_of_a_worse_one() -> None:
    bench = Bench(seats=1)
    usual, worse, better = endless(1, [1], 6), endless(2, [2], 1, priority=1), endless(3, [3], 1, priority=-1)
    bench.add(usual)
    bench.step()
    bench.add(worse, better)
    assert bench.step().preempted == (usual,)
    bench.run()
    assert list(bench.ended) == [3, 1, 2]


def test_an_equal_priority_takes_nobodys_seat() -> None:
    bench = Bench(seats=1)
    bench.add(endless(1, [1], 6))
    bench.step()
    bench.add(endless(2, [2], 1))
    bench.run()
    assert list(bench.ended) == [1, 2]
    assert bench.scheduler.preemptions == 0


def test_a_worse_priority_is_overtaken_by_so_many_and_no_more() -> None:
    bench = Bench(seats=1)
    bench.add(endless(0, [1], 1), endless(1, [1], 1, priority=1))
    overtaken = 0
    for number in range(2, 2 * OVERTAKING):
        bench.add(endless(number, [1], 1))
        bench.step()
        if 1 in bench.ended:
            break
        overtaken += 1
    assert overtaken <= OVERTAKING


def test_equal_prompts_that_come_together_are_read_once() -> None:
    prompt = [(7 * place) % 29 + 1 for place in range(33)]
    bench = Bench(budget=64)
    crowd = [endless(number, prompt, 1) for number in range(4)]
    bench.add(*crowd)
    bench.run()
    assert bench.runner.positions == 33 + 3 * 1
    assert [one.cached for one in crowd] == [0, 32, 32, 32]
    assert [list(one.output) for one in crowd] == [alone(prompt, one.sampling, one.seed, 256) for one in crowd]


def test_drafts_take_no_block_that_another_needs() -> None:
    bench = Bench(blocks=5, block_size=2, seats=2)
    both = [endless(number, [number, number], 4) for number in (1, 2)]
    bench.add(*both)
    bench.step()
    for one in both:
        one.drafts = [1, 1, 1]
    plan = bench.step()  # both need a second block, and there is one more
    assert [row.count for row in plan.rows] == [3, 1]
    assert not plan.preempted


def test_drafts_do_not_reach_past_the_answers_length() -> None:
    bench = Bench()
    one = endless(1, [1], 3)
    bench.add(one)
    bench.step()
    one.drafts = [1, 1, 1, 1]
    assert bench.step().rows[0].count == 2


def test_drafts_do_not_reach_past_the_context() -> None:
    blocks = BlockManager(8, 4)
    scheduler = Scheduler(blocks, Limits(8, 64, context=10))
    one = endless(1, [1] * 7, 100)
    scheduler.add(one)
    runner = ToyRunner(8, 4)
    plan = scheduler.plan()
    scheduler.commit(plan, runner.run(plan))
    one.drafts = [1, 1, 1, 1]
    assert scheduler.plan().rows[0].count == 2  # positions 7 and 8, for the tokens 8 and 9


def test_nobody_is_admitted_into_the_block_that_one_who_runs_needs_next() -> None:
    bench = Bench(blocks=8, block_size=2, seats=4)
    bench.add(endless(1, [1] * 7, 5))
    bench.step()
    bench.add(endless(2, [2] * 7, 5))
    bench.run()
    assert bench.scheduler.preemptions == 0


def test_a_removed_sequence_frees_its_blocks_and_removing_it_again_does_nothing() -> None:
    bench = Bench(seats=1)
    running, waiting = endless(1, [1] * 9), endless(2, [2] * 9)
    bench.add(running, waiting)
    bench.step()
    for one in (running, waiting, running):
        bench.scheduler.remove(one)
        bench.check()
    assert bench.blocks.free == bench.blocks.blocks
    assert not bench.plan().rows


def test_steps_shrink_until_they_fit_and_grow_again_later() -> None:
    bench = Bench(budget=64, memory=20)
    crowd = [endless(number, [number + 1] * 24, 40) for number in range(3)]
    bench.add(*crowd)
    bench.step()
    bench.step()
    assert bench.scheduler.budget == 16
    bench.runner.memory = None
    for _ in range(3 * RECOVERY):
        bench.step()
    assert bench.scheduler.budget == 64
    bench.run()
    assert [list(one.output) for one in crowd] == [alone([n + 1] * 24, crowd[n].sampling, n, 256) for n in range(3)]


def test_fewer_run_at_once_when_even_a_token_each_is_out_of_memory() -> None:
    bench = Bench(seats=6, budget=64)
    crowd = [endless(number, [number + 1] * 2, 6) for number in range(6)]
    bench.add(*crowd)
    assert len(bench.step().rows) == 6
    bench.runner.memory = 2
    for _ in range(3):  # 6 do not fit, nor 3
        bench.step()
    assert len(bench.scheduler.running) == 1
    bench.run()
    assert len(bench.ended) == 6


def test_one_that_is_out_of_memory_alone_fails_alone() -> None:
    bench = Bench(memory=0)
    one, other = endless(1, [1] * 9), endless(2, [2] * 9)
    bench.add(one, other)
    plans = [bench.plan()]
    while (failed := bench.scheduler.shrink(plans[-1])) is None:
        plans.append(bench.plan())
    assert failed is one
    assert plans[-1].tokens == 1


def test_a_poisoned_sequence_fails_alone_and_leaves_nothing_behind() -> None:
    prompt = list(range(1, 25))
    bench = Bench(budget=12)
    ill, well = endless(1, prompt), endless(2, [9, 8, 7])
    bench.runner.poisoned.add(1)
    bench.add(ill, well)
    bench.run()
    assert finish(bench, ill) is Finish.ERROR
    assert isinstance(bench.ended[1].result.error, Poisoned)
    assert list(well.output) == alone([9, 8, 7], well.sampling, 2, 256)
    after = endless(3, prompt)
    bench.add(after)
    bench.run()
    assert list(after.output) == alone(prompt, after.sampling, 3, 256)


def test_an_embedding_ends_once_its_prompt_is_read_whole_and_not_before() -> None:
    scheduler = Scheduler(BlockManager(8, 4), Limits(max_sequences=1, token_budget=4, context=32))
    sequence = Sequence(1, 10, list(range(10)), Sampling(1), pools=True)
    scheduler.add(sequence)
    ends = [scheduler.commit(scheduler.plan(), [Result(sequence)])[0].finish for _ in range(3)]
    assert ends == [None, None, Finish.STOP]
