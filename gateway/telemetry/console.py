"""Traces as trees on standard error, for whoever sits before it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from gateway.telemetry.family import Family
from gateway.telemetry.span import Span, tree


class Console:
    """Writes them to ``stream`` (standard error when ``None``)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def __str__(self) -> str:
        return "the console"

    def spans(self, spans: Sequence[Span]) -> bool:
        """Write traces."""
        by_trace: dict[str, list[Span]] = {}
        for span in spans:
            by_trace.setdefault(span.trace_id, []).append(span)
        for each in by_trace.values():
            print(tree(each), file=self._stream, flush=True)
        return True

    def metrics(self, families: Sequence[Family]) -> bool:
        """Nothing: `/metrics` shows them."""
        return True

    def close(self) -> None:
        """Nothing to close."""
