"""Which of OpenTelemetry's names for generative AI are used: those that back-ends chart, the newer ones, or both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

VARIABLE: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
_LATEST: Final = "gen_ai_latest_experimental"


class Conventions(NamedTuple):
    """The names that are used."""

    old: bool = True
    new: bool = False

    @classmethod
    def chosen(cls, environ: Mapping[str, str] = os.environ) -> Conventions:
        """Return what ``OTEL_SEMCONV_STABILITY_OPT_IN`` says: ``gen_ai_latest_experimental``, with ``/dup`` both."""
        words = {word.strip() for word in environ.get(VARIABLE, "").split(",")}
        if f"{_LATEST}/dup" in words:
            return cls(old=True, new=True)
        return cls(old=_LATEST not in words, new=_LATEST in words)
