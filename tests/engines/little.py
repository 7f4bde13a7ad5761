"""A little engine that does nothing but live and die as it is told: a script, and the command that starts it.

It answers ``GET /health``; ``GET /exit?status=3`` ends it. Standard library only, so that it starts at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SLEEPER = [sys.executable, "-I", "-S", "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"]
"""A process that only SIGKILL ends."""


def arguments(*options: str, port: int) -> tuple[str, ...]:
    """The command line of a little engine."""
    return (sys.executable, "-I", "-S", __file__, "--port", str(port), *options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--never-ready", action="store_true", help="answer 503 for ever")
    parser.add_argument("--fail-while", type=Path, help="end with status 9 at the start while this file is there")
    parser.add_argument("--stubborn", action="store_true", help="take no notice of SIGTERM")
    parser.add_argument("--family", type=Path, help="start a child and a detached grandchild; write their pids here")
    parser.add_argument("--say", default="", help="print this")
    parser.add_argument("--flood", type=int, default=0, help="print so many lines of 100 bytes")
    parser.add_argument("--environment", type=Path, help="write the names of all variables here")
    options = parser.parse_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.environment:
        options.environment.write_text("\n".join(os.environ))
    if options.family:
        _start_family(options.family)
    for number in range(options.flood):
        print(f"{number:08} {'x' * 90}", flush=True)
    if options.say:
        print(options.say, flush=True)
    if options.fail_while and options.fail_while.exists():
        sys.exit(9)
    ThreadingHTTPServer(("127.0.0.1", options.port), _handler(503 if options.never_ready else 200)).serve_forever()


def _handler(health: int) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, status = self.path.partition("?status=")
            if path == "/exit":
                os._exit(int(status))
            self.send_response(health)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    return Handler


def _start_family(report: Path) -> None:
    child = subprocess.Popen(SLEEPER)
    middle = f"import subprocess; print(subprocess.Popen({SLEEPER!r}, stdout=-3, start_new_session=True).pid)"
    made = subprocess.run([sys.executable, "-I", "-S", "-c", middle], stdout=subprocess.PIPE, check=True, timeout=30)
    threading.Thread(target=child.wait, daemon=True).start()
    unfinished = report.with_suffix(".new")
    unfinished.write_text(f"{child.pid} {made.stdout.decode()}")
    unfinished.replace(report)


if __name__ == "__main__":
    main()
