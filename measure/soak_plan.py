"""Which requests a soak consists of, in which order."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Final

from measure.soak_trial import Asked, Role

LENGTHS: Final = (32, 512, 128, 256)
"""Prompt lengths in turn; each returns often enough to be compared with itself."""
OUTPUT_TOKENS: Final = 32
CANCELLED_OUTPUT_TOKENS: Final = 256
REPEATED_TOKENS: Final = 48
WRONG_TYPE: Final = "a prompt of the wrong type"
NO_PROMPT: Final = "no prompt"
TOO_LONG: Final = "longer than the context"
FAULTS: Final = (WRONG_TYPE, TOO_LONG, NO_PROMPT)
LONGEST_CONTEXT: Final = 65_536
"""Beyond this many tokens no prompt is made that would not fit: it would be megabytes."""

_CONTEXT_SHARE: Final = 0.7
"""Prompts keep this far below the context: their token count is aimed at, and a template adds to it."""
_ROUND: Final = (
    (Role.ANSWER, True),
    (Role.ANSWER, True),
    (Role.REPEATED, True),
    (Role.ANSWER, False),
    (Role.CANCELLED, True),
    (Role.ANSWER, True),
    (Role.ANSWER, True),
    (Role.REPEATED, False),
    (Role.ANSWER, False),
    (Role.INVALID, True),
)
"""Right after each cancelled and each invalid request comes an ordinary one: that is where harm would show."""


def plan(requests: int, context: int | None) -> list[Asked]:
    """Return so many requests, for a deployment with a ``context`` in tokens (``None``: unknown).

    The last third says again what the middle third said: an engine that keeps prompts in its cache needs no more memory
    for these, so that what still grows is a leak.
    """
    turns = {role: count() for role in Role}
    repeated = requests // 3
    asked = [
        _asked(role, stream, next(turns[role]), context)
        for role, stream in (_ROUND[place % len(_ROUND)] for place in range(requests - repeated))
    ]
    return asked + [replace(each, again=repeated) for each in asked[len(asked) - repeated :]]


def _asked(role: Role, stream: bool, turn: int, context: int | None) -> Asked:
    if role is Role.INVALID:
        return _invalid(FAULTS[turn % len(FAULTS)], context)
    if role is Role.REPEATED:
        tokens = _fitting(REPEATED_TOKENS, OUTPUT_TOKENS, context)
        return Asked(role=role, stream=stream, prompt_tokens=tokens, output_tokens=OUTPUT_TOKENS)
    output = CANCELLED_OUTPUT_TOKENS if role is Role.CANCELLED else OUTPUT_TOKENS
    tokens = _fitting(LENGTHS[turn % len(LENGTHS)], output, context)
    early = role is Role.CANCELLED and turn % 2 == 1
    return Asked(role=role, stream=stream, prompt_tokens=tokens, output_tokens=output, early=early)


def _invalid(fault: str, context: int | None) -> Asked:
    if fault != TOO_LONG:
        return Asked(role=Role.INVALID, prompt_tokens=REPEATED_TOKENS, output_tokens=1, fault=fault)
    if context is None or context > LONGEST_CONTEXT:
        return _invalid(WRONG_TYPE, context)
    return Asked(role=Role.INVALID, prompt_tokens=2 * context, output_tokens=1, fault=fault)


def _fitting(tokens: int, output_tokens: int, context: int | None) -> int:
    if context is None:
        return tokens
    return max(1, min(tokens, int((context - output_tokens) * _CONTEXT_SHARE)))
