"""Settings of the log of requests."""

from __future__ import annotations

from pydantic import Field

from gateway.settings_base import Group


class RequestSettings(Group):
    """The last requests with their stages, for `paceline why` and the dashboard. Never their text."""

    keep: int = Field(
        default=10_000, ge=0, le=1_000_000, description="Requests that are kept; 0: none.", examples=[100_000]
    )
    resources: bool = Field(
        default=True,
        description="Look once a second at memory, swap, disk waits and GPUs while there are requests.",
        examples=[False],
    )
