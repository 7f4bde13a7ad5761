"""What engines say about an answer's size and times, put into its Outcome."""

from __future__ import annotations

from typing import Any, Final

from adapters.base import Outcome
from adapters.heard import count_in, duration_in, object_in

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
    prompt, output = count_in(usage.get("prompt_tokens")), count_in(usage.get("completion_tokens"))
    if prompt is not None:
        outcome.prompt_tokens = prompt
    if output is not None:
        outcome.output_tokens = output + (outcome.output_tokens or 0 if add else 0)
    cached = count_in(object_in(usage.get("prompt_tokens_details")).get("cached_tokens"))
    if cached is not None:
        outcome.cached_tokens = cached


def read_timings(timings: Any, outcome: Outcome) -> None:
    """The object ``timings`` of llama.cpp (``prompt_n`` tokens read in ``prompt_ms``, ``cache_n`` found in the cache)
    and of the built-in engine, which names its times by their phase."""
    if not isinstance(timings, dict):
        return
    for name, field in _TIMES_MS.items():
        if (milliseconds := duration_in(timings.get(name))) is not None:
            setattr(outcome, field, milliseconds / 1000)
    cached, read = count_in(timings.get("cache_n")), count_in(timings.get("prompt_n"))
    if cached is not None:
        outcome.cached_tokens = cached
        if outcome.prompt_tokens is None and read is not None:
            outcome.prompt_tokens = cached + read


def read_progress(progress: Any, outcome: Outcome) -> None:
    """llama.cpp's ``prompt_progress``: prompt tokens ``processed`` (those from the cache included) of ``total``."""
    if isinstance(progress, dict):
        done, all_ = count_in(progress.get("processed")), count_in(progress.get("total"))
        if done is not None and all_ is not None:
            outcome.prefill_done, outcome.prefill_all = done, all_


def id_of(value: object) -> str:
    """Return what an answer calls itself in its field ``id``, "" where that is no name."""
    return value if isinstance(value, str) and len(value) <= _LONGEST_ID else ""
