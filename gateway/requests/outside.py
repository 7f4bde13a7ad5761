"""What the caller did before it asked, in seconds: by a header of its own, or in the baggage of its trace.

``x-paceline-stage: retrieval=0.8, rerank=0.1`` is the caller's word to this gateway. W3C baggage, such as
``paceline.stage.retrieval=0.8``, is what an OpenTelemetry SDK passes on with the trace context, from wherever the stage
was measured: spans themselves go to a collector and never come with a request.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

MOST_STAGES: Final = 16
LONGEST_S: Final = 86_400.0
BAGGAGE_PREFIX: Final = "paceline.stage."
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}"
_SECONDS: Final = r"\d{1,8}(?:\.\d{1,9})?"
_STAGE: Final = re.compile(rf"\s*({_NAME})\s*=\s*({_SECONDS})\s*")
_MEMBER: Final = re.compile(rf"\s*{re.escape(BAGGAGE_PREFIX)}({_NAME})\s*=\s*({_SECONDS})\s*")

Stages = tuple[tuple[str, float], ...]
"""Names and seconds in their order."""


def read_stages(text: str) -> Stages:
    """Return the stages of the header. Raises ``ValueError`` that says what is wrong."""
    parts = text.split(",")
    if len(parts) > MOST_STAGES:
        raise ValueError(f"names {len(parts)} stages, the most is {MOST_STAGES}")
    stages = []
    for part in parts:
        found = _STAGE.fullmatch(part)
        if found is None or float(found[2]) > LONGEST_S:
            raise ValueError(f"has {part.strip()[:60]!r}; a stage is NAME=SECONDS, such as retrieval=0.8")
        stages.append((found[1], float(found[2])))
    return tuple(stages)


def read_baggage(text: str, named: Stages = ()) -> Stages:
    """Return ``named`` and the stages that the baggage adds: those whose name is not among them yet.

    Baggage comes from afar and is mostly of others: what is no stage there, or one too many, is left alone.
    """
    stages = list(named)
    for member in text.split(","):
        found = _MEMBER.fullmatch(unquote(member.partition(";")[0]))
        if found is None or float(found[2]) > LONGEST_S or len(stages) >= MOST_STAGES:
            continue
        if all(found[1] != name for name, _ in stages):
            stages.append((found[1], float(found[2])))
    return tuple(stages)
