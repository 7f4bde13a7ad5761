"""What a benchmark measures: a deployment, and how it is reached at each moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from adapters.base import Adapter
from measure.outside import OutsideTraffic
from policies.types import Deployment


@dataclass(frozen=True, slots=True)
class Subject:
    """``connect`` returns the present adapter, which is another one after the engine was started anew; it raises
    ``Unreachable`` while there is none. ``pid`` is the engine's process, ``None`` where it cannot be seen."""

    deployment: Deployment
    connect: Callable[[], Adapter]
    pid: Callable[[], int | None]
    traffic: OutsideTraffic
    settings: Mapping[str, str] = field(default_factory=dict)
