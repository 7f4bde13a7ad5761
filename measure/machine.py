"""The state of this machine while something was measured: who else used it, and whether it ran at full speed."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
SPARE_CORES = 0.1
SPARE_SHARE = 0.05
"""Cores that others may use before a record says that the machine was busy: an engine whose threads wait for each
other is slowed by far more than what is taken from it."""
SWAP_BYTES = 16 * MIB
"""So much more in the swap is not noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What could be read, ``None`` where it could not. Over the time of the measurement unless said otherwise.

    ``load_average`` is the system's one-minute mean at its end, ``others_cores`` the CPU cores that processes beside
    the engine and the client used in the mean, ``swap_grown_bytes`` what went to the swap meanwhile. ``cpu_mhz`` is the
    mean over the cores at its end, ``throttled`` whether the CPU or a GPU slowed down for heat or power. ``busy`` is
    the reason why the numbers may be worse than they are on an idle machine; "" when there is none.
    """

    cores: float
    load_average: float | None = None
    others_cores: float | None = None
    swap_used_bytes: int | None = None
    swap_grown_bytes: int | None = None
    cpu_mhz: float | None = None
    cpu_mhz_most: float | None = None
    throttled: bool | None = None
    busy: str = ""


def why_busy(machine: Machine) -> str:
    """Return what disturbed a measurement on this machine, in words; "" when nothing is known to."""
    causes = []
    if (others := machine.others_cores) is not None and others > max(SPARE_CORES, SPARE_SHARE * machine.cores):
        causes.append(f"other processes used {others:.1f} of {machine.cores:g} cores")
    if (grown := machine.swap_grown_bytes) is not None and grown > SWAP_BYTES:
        causes.append(f"{grown / MIB:.0f} MiB went to the swap")
    if machine.throttled:
        causes.append("the processor slowed down for heat or power")
    return "; ".join(causes)
