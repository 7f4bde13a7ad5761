"""Made-up fleets for tests of the policy: every number is stated, nothing is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from policies.predict import Predictor
from policies.types import Capability, Deployment, Hardware, LoadView, PairSample, Precision, SpeedSample
from policies.view import FleetView

ALL = frozenset(Capability)
NOW = 1000.0


def deployment(
    name: str,
    precision: Precision = Precision.FP16,
    *,
    host: str = "",
    model: str = "smollm2",
    engine: str = "llamacpp",
    context: int | None = 8192,
    slots: int | None = None,
    capabilities: frozenset[Capability] = ALL,
    **other: object,
) -> Deployment:
    """Return a deployment that runs alone on a host of its own unless ``host`` is given."""
    host = host or f"host-of-{name}"
    return Deployment(
        id=name,
        model=model,
        engine=engine,
        endpoint=f"endpoint-of-{name}",
        engine_model=f"{model}.gguf",
        precision=precision,
        context=context,
        slots=slots,
        capabilities=capabilities,
        hardware=Hardware(host, frozenset({f"{host}/cpu"})),
        fingerprint=f"fingerprint-of-{name}",
        **other,  # type: ignore[arg-type]
    )


def samples(prefill_per_s: float = 250.0, decode_per_s: float = 50.0) -> list[SpeedSample]:
    """Return a measurement of a deployment with constant speeds in tokens per second."""
    return [SpeedSample(n, 32, n / prefill_per_s, 1.0 / decode_per_s) for n in (16, 64, 256, 1024)]


def fleet(
    speeds: Mapping[Deployment, tuple[float, float] | None],
    loads: Mapping[str, LoadView] | None = None,
    *,
    last_used: Mapping[str, str] | None = None,
    pairs: Iterable[PairSample] = (),
) -> FleetView:
    """Return a fleet from deployments and their speeds (prefill, decode; tokens/s), ``None`` for unmeasured."""
    predictor = Predictor()
    pairs = tuple(pairs)
    for each, speed in speeds.items():
        if speed is not None:
            predictor.measured(each.fingerprint, samples(*speed), pairs, each.hardware)
    return FleetView(tuple(speeds), loads or {}, predictor, last_used or {}, NOW)
