"""Builds the wheel, installs it into a clean environment, imports every module from there, and serves with it.

Extras whose modules are to be imported as well may be named; `engine` takes 4.7 GB, and then serves a real model.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from local_engines import make

ROOT = Path(__file__).resolve().parents[2]
OF_AN_EXTRA = {"telemetry": "gateway.telemetry.otlp", "engine": "engine."}
"""How the names of modules begin that are imported only where an extra is installed: they are about what it brings."""
USUAL = ("telemetry",)
ANSWER_LIMIT_S = 120.0


def main(extras: Sequence[str]) -> int:
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
        plain = [module for module in modules if not module.startswith(tuple(OF_AN_EXTRA.values()))]
        # From another folder, so that nothing is found beside it.
        _run(str(python), "-P", "-c", _IMPORT_ALL.format(modules=plain), cwd=folder)
        _serve(python.with_name("paceline"), folder)
        for extra in extras:
            _run(*install, f"{wheel}[{extra}]")
            of_extra = [module for module in modules if module.startswith(OF_AN_EXTRA[extra])]
            _run(str(python), "-P", "-c", _IMPORT_ALL.format(modules=of_extra), cwd=folder)
            if extra == "engine":
                _serve(python.with_name("paceline"), folder, make("model"))
    print(
        f"wheel: {wheel.name} with {', '.join(extras)}: all of {len(modules)} modules imported, `paceline up` answered"
    )
    return 0


_IMPORT_ALL = """
import importlib, warnings
warnings.simplefilter("error")
for module in {modules!r}:
    importlib.import_module(module)
"""


def _modules(wheel: Path) -> list[str]:
    names = zipfile.ZipFile(wheel).namelist()
    for package in ("gateway", "adapters", "engine", "policies", "measure"):
        if f"{package}/py.typed" not in names:
            raise SystemExit(f"{package}/py.typed is not in the wheel")
    files = [name for name in names if name.endswith(".py") and not name.endswith("__main__.py")]
    return sorted(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files)


def _serve(paceline: Path, folder: Path, model: str = "") -> None:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PACELINE_DATA_DIR": str(folder / "data")}
    command = [str(paceline), "up", "--port", "0", "--json", *(["--model", model] if model else [])]
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
        if model:
            _ask(url, folder)
    finally:
        process.terminate()
        process.wait(30)
    if process.returncode:
        raise SystemExit(f"`paceline up` from the wheel ended with {process.returncode}")


def _ask(url: str, folder: Path) -> None:
    """Ask for a few words of the one model there, as soon as it is loaded."""
    end = time.monotonic() + ANSWER_LIMIT_S
    while not (models := _json(f"{url}/v1/models")["data"]):
        if time.monotonic() > end:
            raise SystemExit(f"no model: {(folder / 'data/logs/builtin.log').read_text()[-2000:]}")
        time.sleep(0.5)
    question = {"model": models[0]["id"], "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    said = _json(f"{url}/v1/chat/completions", question)["choices"][0]["message"]["content"]
    print(f"`paceline up --model` answered: {said!r}")


def _json(url: str, body: object = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _run(*command: str, cwd: Path | None = None) -> None:
    if subprocess.run(command, cwd=cwd, check=False).returncode:
        raise SystemExit(f"failed: {' '.join(command[:4])} …")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or USUAL))
