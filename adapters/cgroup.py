"""What this process's control group (a container, a systemd slice) leaves it of CPU and memory. Linux, v1 and v2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPU seconds a second that may be used, ``None`` without a limit."""
    quotas = []
    for folder in _folders(root, "cpu"):
        with contextlib.suppress(OSError, ValueError):
            if (file := folder / "cpu.max").exists():
                quota, period = file.read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if float(quota) > 0:  # "max" is a ValueError, -1 means none in v1
                quotas.append(float(quota) / float(period))
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that may be used, ``None`` without a limit."""
    limits = []
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and of all above it, which limit it as well."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controllers and controller)
        group = top / path.lstrip("/")
        yield group
        while group != top:
            group = group.parent
            yield group
