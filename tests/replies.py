"""Replies and pairs for tests of the quality regression, with only what a test is about to be said."""

from __future__ import annotations

from collections.abc import Sequence

from measure.quality.checks import Check, NoLoop
from measure.quality.pairs import Pair
from measure.quality.prompts import Prompt, user
from measure.quality.reply import Reply, Token

GOOD = "The ferry leaves at noon and comes back in the evening, full of people."
OTHER = "Nobody has ever seen the ferry leave, since there is no harbour in this town."


def said(text: str, *, finish: str = "stop", tokens: Sequence[Token] = ()) -> Reply:
    return Reply(text=text, finish=finish, tokens=tuple(tokens))


def tokens(text: str, logprob: float = -0.1, *, rivals: dict[str, float] | None = None) -> tuple[Token, ...]:
    """One token a word, all as likely."""
    others = {piece.encode(): value for piece, value in (rivals or {}).items()}
    return tuple(Token(word.encode(), logprob, {word.encode(): logprob, **others}) for word in text.split())


def prompt(number: int = 0, *checks: Check, category: str = "format", max_tokens: int = 48) -> Prompt:
    return Prompt(f"{category}/{number}", category, user(f"Question {number}?"), checks or (NoLoop(),), max_tokens)


def pair(
    baseline: str = GOOD, candidate: str | None = None, number: int = 0, *checks: Check, **logprobs: float
) -> Pair:
    """A pair of texts; ``before`` and ``after`` are the log-probabilities of all tokens of each."""
    candidate = baseline if candidate is None else candidate
    mine = tokens(baseline, logprobs["before"]) if "before" in logprobs else ()
    theirs = tokens(candidate, logprobs["after"]) if "after" in logprobs else ()
    return Pair(prompt(number, *checks), said(baseline, tokens=mine), said(candidate, tokens=theirs))


def pairs(*parts: tuple[int, str, str]) -> list[Pair]:
    """So many pairs of each: (count, baseline's text, candidate's text)."""
    texts = [(before, after) for count, before, after in parts for _ in range(count)]
    return [pair(before, after, number) for number, (before, after) in enumerate(texts)]
