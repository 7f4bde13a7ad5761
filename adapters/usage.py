"""What engines say about an answer's size and times, put into its Outcome."""

from __future__ import annotations

from typing import Any, Final

from adapters.base import Outcome

_LONGEST_ID = 200

_TIMES_MS: Final = {
    "prompt_ms": "prefill_s",
    "predicted_ms": "decode_s",
    "queue_ms": "queue_s",
    "prefill_ms": "prefill_s",
    "decode_ms": "decode_s",
}


def read_usage(usage: Any, outcome: Outcome, *, add: bool = False) -> None:
    """OpenAI's ``usage`` object. With ``add`` its output tokens come on top of those counted already."""
    if not isinstance(usage, dict):
        return
    prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if prompt is not None:
        outcome.prompt_tokens = prompt
    if output is not None:
        outcome.output_tokens = output + (outcome.output_tokens or 0 if add else 0)
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    if cached is not None:
        outcome.cached_tokens = cached


def read_timings(timings: Any, outcome: Outcome) -> None:
    """The object ``timings`` of llama.cpp (``prompt_n`` tokens read in ``prompt_ms``, ``cache_n`` found in the cache)
    and of the built-in engine, which names its times by their phase."""
    if not isinstance(timings, dict):
        return
    for name, field in _TIMES_MS.items():
        if isinstance(value := timings.get(name), int | float):
            setattr(outcome, field, value / 1000)
    cached, read = _count(timings.get("cache_n")), _count(timings.get("prompt_n"))
    if cached is not None:
        outcome.cached_tokens = cached
        if outcome.prompt_tokens is None and read is not None:
            outcome.prompt_tokens = cached + read


def read_progress(progress: Any, outcome: Outcome) -> None:
    """llama.cpp's ``prompt_progress``: prompt tokens ``processed`` (those from the cache included) of ``total``."""
    if isinstance(progress, dict):
        done, all_ = _count(progress.get("processed")), _count(progress.get("total"))
        if done is not None and all_ is not None:
            outcome.prefill_done, outcome.prefill_all = done, all_


def id_of(value: object) -> str:
    """Return what an answer calls itself in its field ``id``, "" where that is no name."""
    return value if isinstance(value, str) and len(value) <= _LONGEST_ID else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
