"""From an engine's settings to what starts it."""

from __future__ import annotations

from pathlib import Path

from adapters.launch import LaunchSpec
from gateway.settings import EngineSettings, LaunchSettings


def launch_spec(engine: EngineSettings, launch: LaunchSettings, data_dir: Path) -> LaunchSpec:
    """Return how an engine is started; its log lies in the data folder."""
    return LaunchSpec(
        name=engine.name,
        engine=launch.engine.value,
        model=str(Path(launch.model).expanduser()) if launch.model.startswith("~") else launch.model,
        alias=launch.alias,
        precision=engine.precision,
        binary=launch.binary,
        python=launch.python,
        context=launch.context,
        slots=launch.slots,
        threads=launch.threads,
        batch=launch.batch,
        port=launch.port,
        args=launch.args,
        env=launch.env,
        ready_timeout_s=launch.ready_timeout_s,
        log_file=data_dir / "logs" / f"{engine.name}.log",
    )
