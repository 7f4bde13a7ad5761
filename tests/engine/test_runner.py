"""A step brings each request what is its own, and an accident meets only those concerned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
import transformers

from engine import quant
from engine.batch import Batch
from engine.config import read_config
from engine.errors import OutOfMemory, Poisoned
from engine.kv_cache import KVCache
from engine.parallel import Group
from engine.quant import Name, Scheme
from engine.request import Plan
from engine.runner import Runner
from engine.sampler import Sampler
from engine.ways import Dense, Way
from tests.engine.driving import BLOCK, CPU, generate, own_blocks, row, runner, sequence, step

WAYS = [(name, way) for name in get_args(Name) if name != "fp8" for ways in quant._ways(name, CPU, 32) for way in ways]
PROMPT = [7, 80, 300, 12, 44, 201, 9, 150, 33, 71, 5, 6, 410, 31, 99, 250, 77, 21, 8, 64]


@pytest.mark.parametrize("most", [1000, 6], ids=["whole", "chunks"])
def test_an_embedding_is_the_mean_of_the_hidden_states(tiny: Callable[[str], Path], most: int) -> None:
    text, answer = sequence(0, PROMPT), sequence(1, PROMPT[:5])
    text.pools = True
    own_blocks([text, answer], 20)
    engine = runner(tiny("llama"))
    while not (found := step(engine, [text, answer], most)[0].embedding):
        pass
    model = transformers.AutoModel.from_pretrained(tiny("llama")).eval()
    with torch.inference_mode():
        mean = model(torch.tensor([PROMPT])).last_hidden_state[0].mean(0)
    torch.testing.assert_close(torch.tensor(found), mean, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "way"), WAYS, ids=lambda value: value if isinstance(value, str) else value.name)
@pytest.mark.parametrize("most", [1000, 3], ids=["many rows", "few rows"])
def test_a_model_runs_by_each_way_of_each_precision(
    tiny: Callable[[str], Path], name: Name, way: Way, most: int
) -> None:
    def embedded(way: Way) -> torch.Tensor:
        texts = [sequence(0, PROMPT), sequence(1, PROMPT[3:17])]
        for text in texts:
            text.pools = True
        own_blocks(texts, 0)
        engine = runner(tiny("llama"), way.dtype, scheme=Scheme(name, (way,) * len(quant.ROWS)))
        found: dict[int, tuple[float, ...]] = {}
        while len(found) < len(texts):
            results = step(engine, [text for text in texts if text.id not in found], most)
            found |= {each.sequence.id: each.embedding for each in results if each.embedding}
        return torch.tensor([found[text.id] for text in texts])

    assert torch.cosine_similarity(embedded(way), embedded(Dense(torch.float32))).min() > 0.995


def test_a_request_whose_numbers_are_no_numbers_fails_alone(tiny: Callable[[str], Path]) -> None:
    engine = runner(tiny("llama"))
    good = sequence(0, PROMPT)
    own_blocks([good], 10)
    expected = generate(engine, [good], 10)
    engine.model._embedding[500] = float("nan")  # type: ignore[attr-defined]
    good, bad, text = sequence(0, PROMPT), sequence(1, [3, 500, 4]), sequence(2, [500, 3])
    text.pools = True
    own_blocks([good, bad, text], 10)
    results = engine.start(Plan(tuple(row(each, 100) for each in (good, bad, text)))).result()
    assert isinstance(results[1].error, Poisoned)
    assert isinstance(results[2].error, Poisoned)
    good.tokens += results[0].tokens
    good.computed = len(PROMPT)
    assert generate(engine, [good], 10) == expected


def test_numbers_that_are_no_numbers_are_noticed_before_a_prompt_is_read_whole(tiny: Callable[[str], Path]) -> None:
    engine = runner(tiny("mistral"))
    engine.model._embedding[500] = float("nan")  # type: ignore[attr-defined]
    bad, good = sequence(1, [3, 500, *PROMPT]), sequence(2, PROMPT)
    own_blocks([bad, good], 10)
    most = len(PROMPT) - 1
    bad_result, good_result = engine.start(Plan((row(bad, most), row(good, most)))).result()
    assert isinstance(bad_result.error, Poisoned)
    assert good_result.error is None


@pytest.mark.parametrize(
    ("ranks", "error", "says"),
    [(1, OutOfMemory, "20 of sequence 41"), (2, RuntimeError, "memory")],  # the other rank is within the step
)
def test_memory_that_is_full_is_said_with_the_rows_concerned(
    tiny: Callable[[str], Path], ranks: int, error: type[Exception], says: str
) -> None:
    engine = runner(tiny("llama"), group=Group(size=ranks))

    def full(batch: Batch, cache: KVCache) -> torch.Tensor:
        return torch.empty(1 << 60)

    engine.model.__class__ = type("Full", (), {"__call__": lambda self, batch, cache: full(batch, cache)})
    one = sequence(41, PROMPT)
    own_blocks([one], 1)
    with pytest.raises(error, match=says):
        engine.start(Plan((row(one, 100),))).result()


def test_only_what_reaches_the_end_of_its_prompt_gets_a_token(tiny: Callable[[str], Path]) -> None:
    long, short = sequence(0, PROMPT), sequence(1, PROMPT[:3])
    own_blocks([long, short], 10)
    results = step(runner(tiny("llama")), [long, short], 8)
    assert results[0].tokens == ()
    assert len(results[1].tokens) == 1


@pytest.mark.parametrize("kind", [torch.float32, torch.int8], ids=str)
def test_what_others_left_in_the_cache_changes_no_answer(tiny: Callable[[str], Path], kind: torch.dtype) -> None:
    def answers(left: float, together: bool) -> list[list[int]]:
        cache = KVCache(read_config(tiny("mistral")), 96, BLOCK, kind, CPU, Group())
        for layer in cache.layers:
            for part in (
                (layer.keys, layer.values) if kind.is_floating_point else (layer.key_scales, layer.value_scales)
            ):
                assert part is not None
                part.fill_(left)
        engine = Runner(runner(tiny("mistral")).model, cache, Sampler(()), CPU)
        asked = [sequence(index, PROMPT[:length]) for index, length in enumerate((20, 3, 11, 19))]
        own_blocks(asked, 30, scattered=together)
        if together:
            return generate(engine, asked, 30)
        return [generate(engine, [each], 30)[0] for each in asked]

    assert answers(float("nan"), True) == answers(0.0, False)
