"""``x-paceline-stage``: what the caller did before it asked, such as ``retrieval=0.8, rerank=0.1`` (seconds)."""

from __future__ import annotations

import re

MOST_STAGES = 16
LONGEST_S = 86_400.0
_STAGE = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]{0,39})\s*=\s*(\d{1,8}(?:\.\d{1,9})?)\s*")


def read_stages(text: str) -> tuple[tuple[str, float], ...]:
    """Return names and seconds in their order. Raises ``ValueError`` that says what is wrong."""
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
