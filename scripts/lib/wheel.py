"""Builds the wheel, installs it into a clean environment, imports every module from there, and serves with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OF_AN_EXTRA = {"telemetry": ["gateway.telemetry.otlp"]}
"""Modules that are imported only where an extra is installed: they are all about what it brings."""


def main() -> int:
    """Returns 0 when the wheel is whole."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    with tempfile.TemporaryDirectory(prefix="paceline-wheel-") as name:
        folder = Path(name)
        _run(uv, "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT))
        wheel = next(folder.glob("*.whl"))
        modules = _modules(wheel)
        _run(sys.executable, "-m", "venv", str(folder / "venv"))
        python = folder / "venv/bin/python"
        constraints = str(ROOT / "constraints.txt")
        install = (uv, "pip", "install", "--quiet", "--python", str(python), "--constraint", constraints)
        _run(*install, str(wheel))
        later = {module for of_extra in OF_AN_EXTRA.values() for module in of_extra}
        # From another folder, so that nothing is found beside it.
        _run(str(python), "-P", "-c", _IMPORT_ALL.format(modules=sorted(set(modules) - later)), cwd=folder)
        _serve(python.with_name("paceline"), folder)
        for extra, of_extra in OF_AN_EXTRA.items():
            _run(*install, f"{wheel}[{extra}]")
            _run(str(python), "-P", "-c", _IMPORT_ALL.format(modules=of_extra), cwd=folder)
    print(f"wheel: {wheel.name}, {len(modules)} modules imported, `paceline up` answered")
    return 0


_IMPORT_ALL = """
import importlib, warnings
warnings.simplefilter("error")
for module in {modules!r}:
    importlib.import_module(module)
"""


def _modules(wheel: Path) -> list[str]:
    names = zipfile.ZipFile(wheel).namelist()
    for package in ("gateway", "adapters", "policies", "measure"):
        if f"{package}/py.typed" not in names:
            raise SystemExit(f"{package}/py.typed is not in the wheel")
    files = [name for name in names if name.endswith(".py") and not name.endswith("__main__.py")]
    return sorted(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files)


def _serve(paceline: Path, folder: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PACELINE_DATA_DIR": str(folder / "data")}
    command = [str(paceline), "up", "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=folder)
    assert process.stdout is not None
    try:
        text = ""
        for line in process.stdout:
            text += line
            try:
                url = json.loads(text)["url"]
                break
            except ValueError:
                continue
        else:
            raise SystemExit("`paceline up` from the wheel ended at once")
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            assert json.load(answer)["status"] == "ok"
    finally:
        process.terminate()
        process.wait(30)
    if process.returncode:
        raise SystemExit(f"`paceline up` from the wheel ended with {process.returncode}")


def _run(*command: str, cwd: Path | None = None) -> None:
    if subprocess.run(command, cwd=cwd, check=False).returncode:
        raise SystemExit(f"failed: {' '.join(command[:4])} …")


if __name__ == "__main__":
    sys.exit(main())
