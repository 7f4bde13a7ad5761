"""Whether an engine's own timings and the client's view tell the same story."""

from __future__ import annotations

TOLERANCE = 0.15
"""A difference beyond this part of the longer time is a disagreement …"""
LEAST_S = 0.02
"""… unless it is shorter than this: a connection and two processes that wake take some milliseconds."""


def disagreement(
    *,
    ttft_s: float | None,
    decode_s: float | None,
    engine_queue_s: float | None,
    engine_load_s: float | None,
    engine_prefill_s: float | None,
    engine_decode_s: float | None,
    alone: bool,
) -> str:
    """Return where the two views lie apart, in words; "" when they agree or the engine says nothing.

    Beside other requests (not ``alone``) the client's TTFT holds a wait, so it is compared only where the engine tells
    its queue.
    """
    parts = []
    if engine_prefill_s is not None and (alone or engine_queue_s is not None):
        parts.append(_apart("TTFT", ttft_s, (engine_queue_s or 0.0) + (engine_load_s or 0.0) + engine_prefill_s))
    if engine_decode_s is not None:
        parts.append(_apart("decode", decode_s, engine_decode_s))
    return "; ".join(part for part in parts if part)


def _apart(name: str, client_s: float | None, engine_s: float) -> str:
    if client_s is None:
        return ""
    difference_s = abs(client_s - engine_s)
    if difference_s <= max(LEAST_S, TOLERANCE * max(client_s, engine_s)):
        return ""
    return f"{name} {client_s:.3f} s, the engine says {engine_s:.3f} s"
