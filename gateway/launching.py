"""From an engine's settings to what starts it."""

from __future__ import annotations

import hashlib
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


def told_settings(words: str, version: str, launch: LaunchSettings | None) -> dict[str, str]:
    """Return an engine's settings by name, for records: ``words`` are those in its description (``ctx=2048
    batch-128``), ``launch`` how it is started, which the description has as a digest only."""
    settings: dict[str, str] = {}
    for word in words.split():
        name, _, value = word.partition("=" if "=" in word else "-")
        if f"{name} {value}" != version:  # it has a field of its own
            settings[name] = value
    if launch is None:
        return settings
    settings.pop("launch", None)
    given = {"threads": launch.threads, "batch": launch.batch, "args": " ".join(launch.args)}
    settings |= {name: str(value) for name, value in given.items() if value}
    if launch.env:  # its values may be secrets
        settings["env"] = hashlib.sha256(repr(sorted(launch.env.items())).encode()).hexdigest()[:8]
    return settings
