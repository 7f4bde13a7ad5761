"""The bounds of histograms: those of OpenTelemetry's conventions, further where local engines need them."""

from __future__ import annotations

from typing import Final

DURATION_S: Final = tuple(round(0.01 * 2**power, 2) for power in range(14))
"""0.01 to 81.92 s."""
TTFT_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
"""A long prompt on a small machine is read for a minute."""
TPOT_S: Final = (
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
"""A small model writes hundreds of tokens a second."""
TOKENS: Final = tuple(4.0**power for power in range(14))
"""1 to 67108864."""
OVERHEAD_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
ERROR: Final = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Parts of the predicted time."""
