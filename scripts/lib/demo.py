"""The demo: real engines in several precisions, measured, then a dozen real requests and why each went where it did."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import yaml
from demo_report import print_repeated, print_report, print_slowest, print_snippets
from demo_requests import send_again, send_all
from ending import end_when_terminated
from gateway_process import Gateway, GatewayFailed
from local_engines import BESIDE, MODEL, Engine, NotMade, engines
from rich.console import Console

console = Console(highlight=False)
if not console.is_terminal:
    console = Console(highlight=False, width=150)


def main() -> int:
    """Run the demo. Returns the exit status: 0 when everything was answered, 1 otherwise."""
    options = _parser().parse_args()
    end_when_terminated()
    with tempfile.TemporaryDirectory(prefix="paceline-demo-") as folder:
        try:
            return _run(options, Path(folder))
        except (NotMade, GatewayFailed) as error:
            console.print(f"[red]error:[/] {error}")
            return 1
        except KeyboardInterrupt:
            return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__, epilog="Example: scripts/demo --keep")
    parser.add_argument("--keep", action="store_true", help="stay up afterwards, and print how to ask it")
    parser.add_argument(
        "--builtin", action="store_true", help="make the built-in engine's environment (4.9 GB, cached)"
    )
    parser.add_argument("--vllm", action="store_true", help="make vLLM as well (5.8 GB, cached likewise)")
    parser.add_argument("--ollama", action="store_true", help="make Ollama as well (some minutes, cached likewise)")
    parser.add_argument(
        "--port", type=int, default=0, help="port of the gateway (default: a free one; 7223 with --keep)"
    )
    return parser


def _run(options: argparse.Namespace, folder: Path) -> int:
    with console.status("Fetching the model and deriving its other precisions …"):
        configured = _engines(options, folder)
    config = folder / "paceline.yaml"
    port = options.port or (7223 if options.keep else 0)
    config.write_text(
        yaml.safe_dump(
            {"server": {"port": port}, "data_dir": str(folder / "data"), "engines": configured}, sort_keys=False
        )
    )
    console.print(f"Starting {len(configured)} engines and the gateway; they are its own processes.")
    with Gateway(config, folder / "gateway.log") as gateway:
        gateway.wait_until_measured(console, {engine["name"] for engine in configured})
        sent = asyncio.run(send_all(gateway.url, gateway.deployments(), console))
        succeeded = print_report(sent, gateway.processes(), console)
        alone = [each for each in sent if not each.together and not each.error]
        if alone:
            slowest = max(alone, key=lambda each: each.total_s)
            again = asyncio.run(send_again(gateway.url, slowest))
            succeeded = print_repeated(slowest, again, console) and succeeded
        succeeded = print_slowest(gateway, console) and succeeded
        if options.keep:
            print_snippets(gateway.url, MODEL, console)
            gateway.wait()
        left = gateway.stop()
    if left:
        console.print(f"[red]error:[/] still running: {', '.join(map(str, left))}")
        return 1
    console.print("Stopped: gateway and engines have ended.")
    return 0 if succeeded else 1


def _engines(options: argparse.Namespace, folder: Path) -> list[Engine]:
    asked = [name for name in BESIDE if getattr(options, name)]
    return engines(BESIDE, folder, lambda line: console.print(line, style="yellow", markup=False), asked)


if __name__ == "__main__":
    sys.exit(main())
