"""What a benchmark measures: a deployment, and how it is reached at each moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from adapters.base import Adapter
from measure.host_watch import HostWatch
from measure.outside import OutsideTraffic
from policies.types import Deployment


@dataclass(frozen=True, slots=True)
class Subject:
    """``connect`` returns the present adapter, which is another one after the engine was started anew; it raises
    ``Unreachable`` while there is none. ``pid`` is the engine's process, ``None`` where it cannot be seen, and ``here``
    whether it runs on this machine."""

    deployment: Deployment
    connect: Callable[[], Adapter]
    pid: Callable[[], int | None]
    traffic: OutsideTraffic
    settings: Mapping[str, str] = field(default_factory=dict)
    here: bool = True

    def watch(self, *beside: Subject) -> HostWatch:
        """Return a new watch over the machine and the engine's process, while it is measured alone or ``beside``."""
        return HostWatch(self.pid, here=self.here, beside=[other.pid for other in beside])
