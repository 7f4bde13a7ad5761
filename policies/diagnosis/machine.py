"""Step 4, resources: was memory, a disk, the GPU or the processors what the engine waited for?"""

from __future__ import annotations

from collections.abc import Iterator

from policies.diagnosis.case import Case, Resources
from policies.diagnosis.verdict import Cause, Evidence, Finding
from policies.diagnosis.whole_log import STALLED
from policies.diagnosis.words import seconds, share, size

_MIB = 1 << 20
SWAPPING = 1.0 * _MIB
"""Bytes a second to and from the swap that slow an engine down."""
MEMORY_STALLED = 0.1
CPU_STALLED = 0.5
"""Share of a second in which some process waits for a processor: an engine alone on all cores stays below."""
FULL = 0.98
HARDLY_USED = 0.2
_ALONE = 0.25
"""Neighbours of ours below which others must be who takes the processors."""


def in_the_machine(case: Case, rest_s: float) -> list[Finding]:
    """Return what this machine lacked while the engine was slower than its lengths explain, by ``rest_s`` seconds.

    For an engine on another machine nothing is known.
    """
    resources = case.resources
    if resources is None or not case.local or rest_s <= 0.0:
        return []
    found = list(_lacks(case, resources, rest_s))
    evidence = tuple(piece for each in found for piece in each.evidence)
    return [Finding(4, found[0].cause, rest_s, found[0].says, found[0].advice, evidence)] if found else []


def _lacks(case: Case, seen: Resources, rest_s: float) -> Iterator[Finding]:
    slower = f"the engine was {seconds(rest_s)} slower than its lengths explain while"
    if (memory := _memory(seen)) is not None:
        yield Finding(
            4,
            Cause.MEMORY,
            rest_s,
            f"{slower} this machine was short of memory: {memory[0]}",
            "Run fewer or smaller models (precision, context, slots), so that they fit into memory.",
            memory[1],
        )
    if case.on_gpu:
        yield from _gpu(seen, rest_s, slower)
    if seen.disk_stall is not None and seen.disk_stall >= STALLED:
        yield Finding(
            4,
            Cause.DISK,
            rest_s,
            f"{slower} processes waited for the disk for up to {share(seen.disk_stall)} of a second",
            "Move the model to a faster disk, or give it memory enough to stay there (llama.cpp: --mlock).",
            (Evidence("waits for the disk", round(seen.disk_stall, 3), "of a second"),),
        )
    others = case.neighbours.get("other_decoding", 0.0) + case.neighbours.get("other_prefilling", 0.0)
    if not case.on_gpu and others < _ALONE and seen.cpu_stall is not None and seen.cpu_stall >= CPU_STALLED:
        yield Finding(
            4,
            Cause.CPU_BUSY,
            rest_s,
            f"{slower} processes waited for a processor for up to {share(seen.cpu_stall)} of a second",
            "Look at what else runs on this machine, and give the engine no more threads than there are cores.",
            (Evidence("waits for a processor", round(seen.cpu_stall, 3), "of a second"), *_cores(seen)),
        )


def _memory(seen: Resources) -> tuple[str, tuple[Evidence, ...]] | None:
    swaps = (seen.swapped_bytes_per_s or 0.0) >= SWAPPING
    stalls = (seen.memory_stall or 0.0) >= MEMORY_STALLED
    if not (swaps or stalls):
        return None
    words, evidence = [], []
    if seen.swapped_bytes_per_s:
        words.append(f"up to {size(seen.swapped_bytes_per_s)} a second went to and from the swap")
        evidence.append(Evidence("to and from the swap", round(seen.swapped_bytes_per_s), "bytes/s", 0.0))
    if seen.memory_stall:
        words.append(f"processes waited for memory for up to {share(seen.memory_stall)} of a second")
        evidence.append(Evidence("waits for memory", round(seen.memory_stall, 3), "of a second", 0.0))
    if seen.swap_used_bytes:
        evidence.append(Evidence("in the swap", seen.swap_used_bytes, "bytes"))
    if seen.memory_available_bytes is not None and seen.memory_bytes:
        words.append(f"{size(seen.memory_available_bytes)} of {size(seen.memory_bytes)} were left")
        evidence.append(Evidence("memory left", seen.memory_available_bytes, "bytes"))
    return ", ".join(words), tuple(evidence)


def _gpu(seen: Resources, rest_s: float, slower: str) -> Iterator[Finding]:
    used, whole, busy = seen.gpu_memory_used_bytes, seen.gpu_memory_bytes, seen.gpu_use
    evidence = []
    if busy is not None:
        evidence.append(Evidence("GPU use", round(busy, 3), "of the time"))
    if used is not None and whole:
        evidence.append(Evidence("GPU memory", used, "bytes", float(whole)))
    if seen.gpu_slowed:
        says = f"{slower} the GPU ran below its speed, for heat or power"
        yield Finding(4, Cause.GPU_SLOWED, rest_s, says, "Look at its cooling and power limit.", tuple(evidence))
    if used is not None and whole and used >= FULL * whole:
        says = f"{slower} the GPU's memory was full: {size(used)} of {size(whole)}"
        advice = "Use a smaller precision, context or batch, so that nothing of the model has to leave the GPU."
        yield Finding(4, Cause.GPU_MEMORY, rest_s, says, advice, tuple(evidence))
    if busy is not None and busy < HARDLY_USED:
        says = f"{slower} the GPU was used for {share(busy)} of the time"
        advice = "See whether all layers are on the GPU (llama.cpp: -ngl), and whether a processor holds it up."
        yield Finding(4, Cause.GPU_IDLE, rest_s, says, advice, tuple(evidence))


def _cores(seen: Resources) -> tuple[Evidence, ...]:
    if seen.busy_cores is None:
        return ()
    return (Evidence("busy cores", round(seen.busy_cores, 1), "", seen.cores),)
