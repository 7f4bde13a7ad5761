"""When a record says that the machine was busy."""

from __future__ import annotations

import pytest

from measure.machine import Machine, why_busy

MIB = 1 << 20


@pytest.mark.parametrize(
    ("machine", "cause"),
    [
        (Machine(cores=2, others_cores=0.1, swap_grown_bytes=0, throttled=False), ""),
        (Machine(cores=2, others_cores=1.31), "other processes used 1.3 of 2 cores"),
        (Machine(cores=64, others_cores=3.0), ""),
        (Machine(cores=2, swap_grown_bytes=200 * MIB), "200 MiB went to the swap"),
        (Machine(cores=2, throttled=True), "the processor slowed down for heat or power"),
        (Machine(cores=2), ""),
        (
            Machine(cores=2, others_cores=2.0, throttled=True),
            "other processes used 2.0 of 2 cores; the processor slowed down for heat or power",
        ),
    ],
)
def test_the_reason_is_named_and_what_could_not_be_read_is_none(machine: Machine, cause: str) -> None:
    assert why_busy(machine) == cause
