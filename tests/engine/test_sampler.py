"""Choices: what they depend on, how they are distributed, and what changes them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import Poisoned
from engine.request import Result, Sampling, Sequence
from engine.sampler import Sampler, Wanted, draw, uniform

VOCABULARY = 61
EOS = 1


def sequence(number: int = 0, tokens: Listed[int] = (5, 6, 7), prompt: int = 2, seed: int = 11, **how: Any) -> Sequence:
    return Sequence(number, prompt, list(tokens), Sampling(max_tokens=100, **how), seed=seed)


def logits(rows: int, seed: int = 0, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def sample(values: Tensor, sequences: Iterable[Sequence]) -> list[Result]:
    wanted, first = [], 0
    for each in sequences:
        wanted.append(Wanted(each, first))
        first += 1 + len(each.drafts)
    return Sampler([EOS]).sample(values, wanted)


def distribution(row: NDArray[Any], how: Sampling) -> NDArray[Any]:
    """What a row's draws are distributed as, by sorting, in doubles."""
    scores = row.astype(np.float64) / how.temperature
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    order = np.argsort(-shares, kind="stable")
    kept = order[: how.top_k] if how.top_k else order
    held = np.cumsum(shares[kept]) / shares[kept].sum()
    kept = kept[: int(np.searchsorted(held, how.top_p - 1e-12)) + 1] if how.top_p < 1 else kept
    kept = kept[shares[kept] >= how.min_p * shares.max()]
    result: NDArray[Any] = np.zeros_like(shares)
    result[kept] = shares[kept] / shares[kept].sum()
    return result


DRAWN = [
    {"temperature": 1.0},
    {"temperature": 0.4},
    {"temperature": 2.5, "top_k": 7},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 1.0, "min_p": 0.08},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
]


@pytest.mark.parametrize("how", DRAWN, ids=str)
def test_draws_are_distributed_as_the_sampling_says(how: dict[str, float]) -> None:
    count = 20_000
    row = logits(1, seed=4)[0]
    asked = Sampling(max_tokens=1, **how)  # type: ignore[arg-type]
    noise = [uniform(17, position) for position in range(count)]
    chunks = [noise[start : start + 2000] for start in range(0, count, 2000)]
    drawn = torch.cat([draw(row.expand(2000, -1).clone(), [asked] * 2000, chunk) for chunk in chunks])
    seen = np.bincount(drawn.numpy(), minlength=VOCABULARY)
    expected = distribution(row.numpy(), asked) * count
    assert not seen[expected == 0].any()
    common = expected >= 5
    chi_square = ((seen - expected) ** 2 / np.where(common, expected, 1))[common].sum()
    freedom = int(common.sum()) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 10


@pytest.mark.parametrize("how", DRAWN, ids=str)
def test_a_vocabulary_wider_than_what_is_sorted_first_is_cut_at_the_same_place(how: dict[str, float]) -> None:
    flat = logits(1, seed=5, vocabulary=5000) * 0.02  # nearly uniform: a large part of it is kept
    asked = Sampling(max_tokens=1, **how)  # type: ignore[arg-type]
    allowed = distribution(flat[0].numpy(), asked) > 0
    noise = [index / 4000 for index in range(4000)]
    drawn = draw(flat.expand(4000, -1).clone(), [asked] * 4000, noise)
    assert allowed[drawn.numpy()].all()
    assert drawn[-1] >= int(np.flatnonzero(allowed)[-1]) - 5, "the last of what is kept can be drawn, too"


def test_noise_of_neighbouring_seeds_and_positions_is_uniform_and_unrelated() -> None:
    table = np.array([[uniform(seed, position) for position in range(100)] for seed in range(100)])
    assert table.min() >= 0
    assert table.max() < 1
    counts = np.histogram(table, 20, (0, 1))[0]
    assert ((counts - 500) ** 2 / 500).sum() < 50
    assert abs(np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]) < 0.04
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.04


def test_temperature_zero_takes_the_best_and_a_tiny_one_hardly_anything_else() -> None:
    values = logits(3)
    best = values.argmax(1).tolist()
    for temperature in (0.0, 1e-8, 1e-40):
        results = sample(values, [sequence(number, temperature=temperature) for number in range(3)])
        assert [result.tokens for result in results] == [(token,) for token in best]


HOW = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.7, 1.0, 1.8])},
    optional={
        "top_k": st.integers(1, 80),
        "top_p": st.floats(0.05, 1.0),
        "min_p": st.floats(0.0, 0.3),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.5, 2),
        "logit_bias": st.just(((3, 5.0), (4, -100.0))),
        "min_tokens": st.integers(0, 4),
        "logprobs": st.integers(0, 5),
    },
)


@settings(max_examples=60, deadline=None)
@given(hows=st.lists(HOW, min_size=1, max_size=6), seed=st.integers(0, 2**63), data=st.data())
def test_what_else_is_in_the_batch_changes_nothing(hows: list[dict[str, Any]], seed: int, data: st.DataObject) -> None:
    values = logits(len(hows), seed=seed % 1000)
    mine = [sequence(number, seed=seed + number, **how) for number, how in enumerate(hows)]
    together = sample(values, mine)
    order = data.draw(st.permutations(range(len(hows))))
    mixed = sample(values[order], [mine[index] for index in order])
    for place, index in enumerate(order):
        alone = sample(values[index : index + 1], [mine[index]])[0]
        assert alone == together[index] == mixed[place]


@settings(max_examples=60, deadline=None)
@given(how=HOW, seed=st.integers(0, 2**32), data=st.data())
def test_any_drafts_give_the_same_tokens_as_none(how: dict[str, Any], seed: int, data: st.DataObject) -> None:
    table = logits(VOCABULARY, seed=seed % 997)  # the next token's logits, by the last token
    plain = sequence(seed=seed, **how)
    while plain.generated < 12:
        plain.tokens += sample(table[plain.tokens[-1:]], [plain])[0].tokens
    fast = sequence(seed=seed, **how)
    steps = 0
    while fast.generated < 12:
        right = plain.tokens[len(fast.tokens) :]
        guess = data.draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=4))
        fast.drafts = [*right[: data.draw(st.integers(0, 4))], *guess][:4]
        result = sample(table[[fast.tokens[-1], *fast.drafts]], [fast])[0]
        assert len(result.tokens) == len(result.logprobs) or how.get("logprobs") is None
        fast.tokens += result.tokens
        steps += 1
    assert fast.tokens[: len(plain.tokens)] == plain.tokens[: len(fast.tokens)]


def test_right_drafts_are_all_accepted_and_bring_one_more_token() -> None:
    values = logits(4)
    best = values.argmax(1).tolist()
    drafted = sequence(temperature=0.0)
    drafted.drafts = best[:3]
    assert sample(values, [drafted])[0].tokens == tuple(best)
    drafted.drafts = [best[0], (best[1] + 1) % VOCABULARY, best[2]]
    assert sample(values, [drafted])[0].tokens == tuple(best[:2])


@pytest.mark.parametrize("drafts", [[], [9, 9, 10]])
def test_penalties_and_biases_are_what_their_formulas_say(drafts: list[int]) -> None:
    how: dict[str, Any] = {"presence_penalty": 0.9, "frequency_penalty": 0.3, "repetition_penalty": 1.7}
    mine = sequence(tokens=[4, 8, 8, 9, 12, 9], prompt=2, temperature=1e-30, logit_bias=((20, 4.5), (12, -2.0)), **how)
    mine.drafts = drafts
    values = logits(1 + len(drafts), seed=8)
    expected = values.numpy().copy()
    for position, row in enumerate(expected):
        output = [*mine.tokens[2:], *drafts[:position]]
        for token in {*mine.tokens, *output}:
            row[token] = row[token] / 1.7 if row[token] > 0 else row[token] * 1.7
        for token in set(output):
            row[token] -= 0.9 + 0.3 * output.count(token)
        row[20] += 4.5
        row[12] -= 2.0
    for token in range(VOCABULARY):  # each in turn is lifted to be just the best, and just not
        for lift, wins in ((0.01, True), (-0.01, False)):
            rest = np.delete(expected[-1], token).max()
            nudged = replace(
                mine.sampling, logit_bias=((20, 4.5), (12, -2.0), (token, rest - expected[-1][token] + lift))
            )
            checked = Sequence(0, 2, [*mine.tokens, *drafts], nudged)
            assert (sample(values[-1:], [checked])[0].tokens == (token,)) is wins


def test_an_answer_does_not_end_before_its_least_length() -> None:
    values = logits(1)
    values[0, EOS], values[0, 30], values[0, 31] = 30.0, 20.0, 10.0
    for generated, token in ((0, 31), (1, 31), (2, EOS)):
        mine = sequence(
            tokens=[5] * (2 + generated), min_tokens=2, stop_token_ids=(30,), temperature=0.0 if generated else 0.5
        )
        assert sample(values, [mine])[0].tokens == (token,)
    drafted = sequence(tokens=[5, 5, 5], min_tokens=2, temperature=0.0)
    drafted.drafts = [30]
    assert sample(values.expand(2, -1), [drafted])[0].tokens == (30, EOS), "a draft counts for what is behind it"


def test_logprobs_are_the_models_own_with_the_best_first() -> None:
    values = logits(2, seed=3)
    expected = values.double() - values.double().logsumexp(1, keepdim=True)
    biased = sequence(logprobs=3, temperature=0.0, logit_bias=((9, 100.0),), repetition_penalty=1.5)
    bare = sequence(1, logprobs=0, temperature=0.9)
    first, second = sample(values, [biased, bare])
    assert first.tokens == (9,)
    assert first.logprobs[0].chosen == pytest.approx(expected[0, 9].item(), abs=1e-5)
    best = expected[0].topk(3)
    assert [token for token, _ in first.logprobs[0].best] == best.indices.tolist()
    assert [value for _, value in first.logprobs[0].best] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert second.logprobs[0].best == ()
    assert second.logprobs[0].chosen == pytest.approx(expected[1, second.tokens[0]].item(), abs=1e-5)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(poison: float, temperature: float) -> None:
    values = logits(3)
    mine = [sequence(number, temperature=temperature, top_p=0.9, logprobs=2) for number in range(3)]
    healthy = sample(values, mine)
    values[1, 7] = poison
    results = sample(values, mine)
    assert isinstance(results[1].error, Poisoned)
    assert not results[1].tokens
    assert [results[0], results[2]] == [healthy[0], healthy[2]]


def test_what_is_not_finite_behind_a_draft_that_is_refused_harms_nobody() -> None:
    values = logits(2)
    mine = sequence(temperature=0.0)
    mine.drafts = [(int(values[0].argmax()) + 1) % VOCABULARY]
    values[1] = math.nan
    assert sample(values, [mine])[0].tokens == (int(values[0].argmax()),)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_drawn_from_as_floats(kind: torch.dtype) -> None:
    values = logits(2).to(kind)
    mine = [sequence(number, temperature=1.1, top_p=0.8, logprobs=1) for number in range(2)]
    assert sample(values, mine) == sample(values.float(), mine)


def test_a_bias_for_a_token_beyond_the_vocabulary_harms_nobody() -> None:
    values = logits(1)
    mine = sequence(temperature=0.0, logit_bias=((VOCABULARY + 5, 100.0),))
    assert sample(values, [mine])[0].tokens == (int(values.argmax()),)
