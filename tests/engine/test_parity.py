"""The engine's tokens and logits are transformers', whatever the batching, the chunks and the blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.batch import assemble
from engine.request import Plan, Row
from tests.engine.conftest import ARCHITECTURES
from tests.engine.driving import BLOCK, CPU, generate, own_blocks, runner, sequence

TOKENS = 64
BF16_TOLERANCE = 1.25
"""How much further from fp32 our logits in bf16 may be than transformers' in bf16: the mean absolute differences of all
prompts together. That of one prompt is chance: 0.4 to 1.8 by what a CPU's instructions round."""
BF16_LENGTHS = (5, 37, 70, 18) * 6


@cache
def reference(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    model.generation_config = transformers.GenerationConfig(max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    return model


def prompts(vocabulary: int, lengths: tuple[int, ...] = (5, 37, 70, 18)) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in lengths]


@cache
def expected(path: Path) -> list[list[int]]:
    """Transformers' greedy tokens behind each prompt, one request at a time."""
    model = reference(path)
    answers = []
    for prompt in prompts(model.config.vocab_size):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            answers.append(model.generate(ids, attention_mask=torch.ones_like(ids))[0, len(prompt) :].tolist())
    return answers


@pytest.fixture(params=(*ARCHITECTURES, "smollm2"))
def folder(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Path:
    """Each tiny model, and the real one."""
    return request.getfixturevalue("smollm2") if request.param == "smollm2" else tiny(request.param)


@pytest.mark.parametrize(
    ("most", "scattered"), [(10_000, False), (13, False), (16, True)], ids=["whole", "chunks", "chunks-scattered"]
)
def test_greedy_tokens_in_fp32_are_transformers(folder: Path, most: int, scattered: bool) -> None:
    sequences = [sequence(i, prompt) for i, prompt in enumerate(prompts(reference(folder).config.vocab_size))]
    own_blocks(sequences, TOKENS, scattered)
    assert generate(runner(folder), sequences, TOKENS, most) == expected(folder)


def test_one_request_alone_gets_the_tokens_that_it_gets_among_others(folder: Path) -> None:
    engine = runner(folder)
    for index, prompt in enumerate(prompts(reference(folder).config.vocab_size)):
        alone = [sequence(index, prompt)]
        own_blocks(alone, TOKENS)
        assert generate(engine, alone, TOKENS) == expected(folder)[index : index + 1]


def test_blocks_of_another_request_with_the_same_beginning_are_as_good_as_own_ones(folder: Path) -> None:
    engine = runner(folder)
    prompt = prompts(reference(folder).config.vocab_size)[2]
    first, second = sequence(0, prompt), sequence(1, prompt)
    own_blocks([first, second], TOKENS)
    generate(engine, [first], 20)
    shared = len(prompt) // BLOCK
    second.blocks = first.blocks[:shared] + second.blocks[shared:]
    second.computed = shared * BLOCK
    assert generate(engine, [second], TOKENS) == expected(folder)[2:3]


def test_drafts_are_accepted_as_far_as_they_are_what_would_have_come(folder: Path) -> None:
    engine = runner(folder)
    prompt, answer = prompts(reference(folder).config.vocab_size)[1], expected(folder)[1]
    one = sequence(0, prompt)
    own_blocks([one], TOKENS + 8)
    while one.generated < TOKENS:
        come = one.generated
        right = answer[come : come + 3]
        one.drafts = [] if come == 0 else [*right, (answer[(come + 3) % TOKENS] + 1) % 500]
        generate(engine, [one], min(come + 1, TOKENS))
        assert come == 0 or one.generated >= min(come + 4, TOKENS)
    assert list(one.output)[:TOKENS] == answer


def test_logits_in_bf16_are_as_near_to_fp32_as_transformers_are(folder: Path) -> None:
    exact, rounded = reference(folder), reference(folder, torch.bfloat16)
    engine = runner(folder, torch.bfloat16)
    our_error = their_error = 0.0
    for prompt in prompts(exact.config.vocab_size, BF16_LENGTHS):
        one = sequence(0, prompt)
        own_blocks([one], 1)
        with torch.inference_mode():
            batch = assemble(Plan((Row(one, 0, len(prompt), True),)), BLOCK, CPU)
            ours = engine.model.logits(engine.model(batch, engine.cache)).float()
            truth, theirs = (model(torch.tensor([prompt])).logits[0].float() for model in (exact, rounded))
        our_error += float((ours - truth).abs().mean())
        their_error += float((theirs - truth).abs().mean())
    assert our_error < BF16_TOLERANCE * their_error
