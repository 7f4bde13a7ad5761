"""Deployments, runs and records for tests, with only what a test is about to be said."""

from __future__ import annotations

from typing import Any

from measure.records import Asked, Beside, Kind, Record, Run
from measure.summary import summarise
from policies.types import Capability, Deployment, Hardware, Precision

GENERATES = frozenset({Capability.CHAT, Capability.COMPLETION})
SHARED_CPU = Hardware("here", frozenset({"here/cpu"}), "a CPU with 2 cores")


def deployment(name: str = "smol-int4", **fields: Any) -> Deployment:
    given: dict[str, Any] = {
        "id": name,
        "model": "smol",
        "engine": "llamacpp",
        "endpoint": f"engine of {name}",
        "engine_model": "engine-model",
        "precision": Precision.INT4,
        "scheme": "Q4_1",
        "context": 2048,
        "slots": 2,
        "capabilities": GENERATES,
        "hardware": SHARED_CPU,
        "fingerprint": f"fingerprint of {name}",
        "engine_version": "b1",
    }
    return Deployment(**given | fields)


def run(prompt_tokens: int = 100, ttft_s: float = 1.0, **fields: Any) -> Run:
    given: dict[str, Any] = {"output_tokens": 16, "total_s": ttft_s + 1.5, "decode_s": 1.5}
    return Run(prompt_tokens=prompt_tokens, ttft_s=ttft_s, **given | fields)


def record(
    *runs: Run,
    of: Deployment | None = None,
    kind: Kind = Kind.QUICK,
    asked_tokens: int = 128,
    asked_output: int = 16,
    concurrency: int = 1,
    prefix_tokens: int = 0,
    failed: str = "",
    beside: Beside | None = None,
    **fields: Any,
) -> Record:
    asked = Asked(
        prompt_tokens=asked_tokens, output_tokens=asked_output, concurrency=concurrency, prefix_tokens=prefix_tokens
    )
    return summarise(kind, of or deployment(), asked, runs, failed=failed, beside=beside, **fields)


def pair_record(
    alone: Run, beside: Run, *, activity: str = "decoding", neighbour: str = "smol-fp16", same: bool = False
) -> Record:
    what = Beside(
        neighbour="same" if same else "other",
        activity=activity,
        fingerprint=f"fingerprint of {neighbour}",
        deployment=neighbour,
        alone=(alone,),
    )
    return record(beside, kind=Kind.PAIR, beside=what)
