"""Guessing ahead: what is guessed, and that it stops where it does not pay."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from toy_runner import sequence

from engine.request import Plan, Result, Row, Sampling, Sequence
from engine.scheduler import Outcome
from engine.speculative import MOST, NgramProposer, Speculator


def guess(proposer: NgramProposer, one: Sequence, most: int = 4) -> list[int]:
    proposer.propose([one], [most])
    return one.drafts


def test_what_followed_when_the_last_tokens_occurred_before_is_guessed() -> None:
    assert guess(NgramProposer(), sequence(1, [1, 2, 3, 4, 5, 6, 9, 1, 2, 3])) == [4, 5, 6, 9]
    assert guess(NgramProposer(), sequence(1, [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]), most=2) == [4, 5]


def test_nothing_is_guessed_where_nothing_occurred_before() -> None:
    assert guess(NgramProposer(), sequence(1, [1, 2, 3, 4, 5])) == []
    assert guess(NgramProposer(), sequence(1, [1])) == []


def test_a_longer_run_of_equal_tokens_goes_before_a_later_one() -> None:
    tokens = [1, 2, 3, 4, 50, 9, 3, 4, 60, 9, 1, 2, 3, 4]
    assert guess(NgramProposer(), sequence(1, tokens), most=1) == [50]


def test_of_two_equal_runs_the_later_goes_first() -> None:
    assert guess(NgramProposer(), sequence(1, [1, 2, 30, 1, 2, 40, 1, 2]), most=1) == [40]


@given(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40), pieces=st.lists(st.integers(1, 5)))
def test_a_guess_does_not_depend_on_how_the_tokens_came(tokens: list[int], pieces: list[int]) -> None:
    grown, proposer = sequence(1, tokens[:1]), NgramProposer()
    for piece in pieces:
        guess(proposer, grown)
        grown.tokens = tokens[: len(grown.tokens) + piece]
    grown.tokens = list(tokens)
    guesses = guess(proposer, grown)
    assert guesses == guess(NgramProposer(), sequence(2, tokens))
    expected: list[int] = []
    for size in (4, 3, 2):
        places = [end for end in range(size, len(tokens)) if tokens[end - size : end] == tokens[-size:]]
        if places and len(tokens) >= size:
            expected = tokens[places[-1] : places[-1] + 4]
            break
    assert guesses == expected


class Eager:
    """Guesses as many as it may, and remembers for whom it was asked last."""

    def __init__(self) -> None:
        self.known: set[int] = set()

    def propose(self, sequences: list[Sequence], most: list[int]) -> None:
        for one, limit in zip(sequences, most, strict=True):
            self.known.add(one.id)
            one.drafts = [7] * limit

    def forget(self, one: Sequence) -> None:
        self.known.discard(one.id)


def drafted(
    acceptance: float, seconds: Callable[[int], float], together: int = 1, steps: int = 600, round_s: float = 0.0
) -> list[int]:
    """How many drafts each step had, when each is accepted with a probability; a step of n positions takes so long.

    The proposer takes ``round_s`` for each draft of the sequence that has most.
    """
    random = Random(3)
    speculator = Speculator(Eager())
    crowd = [sequence(number, [1], Sampling(max_tokens=10**6)) for number in range(together)]
    counts = []
    for _ in range(steps):
        speculator.propose(crowd)
        plan = Plan(tuple(Row(one, one.computed, 1 + len(one.drafts), True) for one in crowd))
        outcomes = []
        for one in crowd:
            right = next((k for k in range(len(one.drafts)) if random.random() >= acceptance), len(one.drafts))
            tokens = (7,) * (right + 1)
            outcomes.append(Outcome(one, Result(one, tokens), tokens=tokens, drafted=len(one.drafts)))
        counts.append(plan.tokens - together)
        guessing_s = round_s * max(len(one.drafts) for one in crowd)
        for one in crowd:
            one.drafts = []
        speculator.learn(plan, outcomes, seconds(plan.tokens) + guessing_s, guessing_s)
    assert speculator.proposed == sum(counts)
    return counts


def flat(positions: int) -> float:
    return 0.05 + 0.0001 * positions


def proportional(positions: int) -> float:
    return 0.001 + 0.05 * positions


def test_guesses_that_come_true_become_more() -> None:
    counts = drafted(0.85, flat)[-200:]
    assert counts.count(MOST) > 150


def test_guesses_that_never_come_true_nearly_stop() -> None:
    counts = drafted(0.0, flat)
    assert counts[0] > 0
    assert sum(counts[300:]) < 30


def test_guesses_stop_where_each_costs_as_much_as_a_step() -> None:
    counts = drafted(0.5, proportional, steps=900)
    assert sum(counts[600:]) < 30


def test_guesses_that_pay_alone_do_not_where_a_step_of_many_grows_with_its_size() -> None:
    def half(positions: int) -> float:
        return 0.05 + 0.02 * positions

    alone, many, sure = drafted(0.6, half), drafted(0.6, half, together=8), drafted(0.97, half, together=8)
    assert sum(many[300:]) / 8 < sum(alone[300:]) / 10
    assert sum(sure[300:]) / 8 > sum(alone[300:])


def test_a_proposer_as_slow_as_the_model_is_hardly_asked_and_a_fast_one_of_equal_guesses_all_the_time() -> None:
    slow = drafted(0.95, flat, round_s=flat(1))
    fast = drafted(0.95, flat, round_s=flat(1) / 10)
    assert sum(slow[100:]) < 50
    assert sum(fast[100:]) > 20 * sum(slow[100:])


@given(acceptance=st.floats(0, 1), ratio=st.floats(0, 2), growth=st.floats(0, 1), reading_s=st.floats(0, 5))
def test_guessing_costs_at_most_a_hundredth_of_the_time_and_what_it_needs_to_find_out(
    acceptance: float, ratio: float, growth: float, reading_s: float
) -> None:
    step_s, random = 0.02, Random(5)
    speculator = Speculator(Eager())
    spent = 0.0
    made = 0
    for number in range(40):
        one, reading = sequence(number, [1], Sampling(max_tokens=10**6)), reading_s
        for _ in range(64):
            speculator.propose([one])
            drafts = len(one.drafts)
            guessing_s = ratio * step_s * drafts + (reading if drafts else 0.0)
            reading = 0.0 if drafts else reading
            right = next((k for k in range(drafts) if random.random() >= acceptance), drafts)
            plan = Plan((Row(one, 0, 1 + drafts, True),))
            outcome = Outcome(one, Result(one), tokens=(7,) * (right + 1), drafted=drafts)
            seconds = step_s * (1 + growth * drafts) + guessing_s
            speculator.learn(plan, [outcome], seconds, guessing_s)
            one.drafts = []
            spent += seconds
            made += right + 1
        speculator.forget(one)
    assert spent <= 1.04 * made * step_s + 1.0 + reading_s


def test_it_tries_again_after_a_pause() -> None:
    counts = drafted(0.0, flat, steps=2000)
    assert any(counts[1000:])


def test_of_one_that_ended_nothing_is_kept() -> None:
    proposer = Eager()
    speculator = Speculator(proposer)
    one = sequence(1, [1])
    speculator.propose([one])
    assert proposer.known == {1}
    for _ in range(20):
        plan = Plan((Row(one, 0, 1 + len(one.drafts), True),))
        speculator.learn(plan, [Outcome(one, Result(one), tokens=(1,), drafted=len(one.drafts))], 0.1)
        one.drafts = []
        speculator.propose([one])
    assert one.drafts == []
    speculator.forget(one)
    assert not proposer.known
    speculator.propose([one])
    assert one.drafts
