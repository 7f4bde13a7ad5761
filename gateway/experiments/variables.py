"""In what the deployments of two arms differ, in the words of `paceline compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from measure.compare_variables import Difference, differences
from policies.types import Deployment, Precision


@dataclass(frozen=True, slots=True)
class _Serving:
    """A deployment as records describe one. Its settings are in its fingerprint only."""

    model: str
    engine: str
    engine_version: str
    precision: Precision
    scheme: str
    hardware: str
    context: int | None
    slots: int | None
    fingerprint: str
    settings: Mapping[str, str] = field(default_factory=dict)


def variables(first: Sequence[Deployment], second: Sequence[Deployment]) -> list[Difference]:
    """Return in what two arms differ, or of what one of them has several values."""
    return differences([_serving(each) for each in first], [_serving(each) for each in second])


def _serving(deployment: Deployment) -> _Serving:
    hardware = deployment.hardware
    return _Serving(
        model=deployment.model,
        engine=deployment.engine,
        engine_version=deployment.engine_version,
        precision=deployment.precision,
        scheme=deployment.scheme,
        hardware=" ".join(sorted(hardware.devices)) or hardware.host,
        context=deployment.context,
        slots=deployment.slots,
        fingerprint=deployment.fingerprint,
    )
