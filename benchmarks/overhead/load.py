"""The load generator: keep-alive clients that send the next request when an answer is whole.

Started as a process of its own, so that it shares no core time with what it measures but what the machine forces on
it. It parses no more than it needs to see the end of an answer, and reads the gateway's CPU time at both ends of the
measured window. Prints a ``Load`` as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Final, cast

import psutil
import uvloop

from benchmarks.overhead.upstream import CHUNKS, MODEL

KEY: Final = "sk-overhead-benchmark-0123456789abcdef"
"""What the clients show; the gateways that check keys are told to expect it."""

_MOST_ERRORS = 100
_NUMBERED = b"Tell me about"


@dataclass(frozen=True, slots=True)
class Load:
    """What one run saw. Times in milliseconds, CPU in seconds."""

    requests: int
    seconds: float
    errors: int
    first_error: str
    p50_ms: float
    p99_ms: float
    first_byte_ms: float
    """Median time to the first byte of the answer's head or body."""
    gateway_cpu_s: float
    generator_cpu_s: float


def request_content(stream: bool) -> bytes:
    """A chat request of 1.3 kB."""
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant. " * 8},
            {"role": "user", "content": "Tell me about the sea and the wind. " * 24},
        ],
        "max_tokens": CHUNKS,
        "temperature": 0,
    }
    # For a cache, a stream is to be another request: a replay has the pieces in which its answer was made.
    return json.dumps(body | ({"stream": True, "top_p": 1} if stream else {})).encode()


def request_headers() -> dict[str, str]:
    """The headers that a client of the OpenAI library sends, in short."""
    return {
        "Accept": "application/json",
        "Content-Type": "application/json",
        "User-Agent": "OpenAI/Python",
        "Authorization": f"Bearer {KEY}",
    }


def request_bytes(port: int, stream: bool) -> bytes:
    """The whole request as it goes over the wire."""
    content = request_content(stream)
    headers = {"Host": f"127.0.0.1:{port}"} | request_headers() | {"Content-Length": str(len(content))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode() + content


class Run:
    """All clients of one run, and what they saw."""

    def __init__(self, port: int, clients: int, stream: bool, unique: bool = False) -> None:
        self.port = port
        self.clients = clients
        self.stream = stream
        self._request = request_bytes(port, stream)
        self._numbers = itertools.count(time.time_ns() % 10**12) if unique else None
        self.latencies_s: list[float] = []
        self.first_bytes_s: list[float] = []
        self.errors = 0
        self.first_error = ""
        self.stopped = False
        self.failed = asyncio.Event()

    @property
    def request(self) -> bytes:
        """What is sent next: the same each time, or numbered, so that no cache has the answer."""
        if self._numbers is None:
            return self._request
        return self._request.replace(_NUMBERED, b"%0*d" % (len(_NUMBERED), next(self._numbers)), 1)

    def error(self, text: str) -> None:
        self.first_error = self.first_error or text
        self.errors += 1
        if self.errors >= _MOST_ERRORS:
            self.stopped = True
            self.failed.set()

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: Client(self), "127.0.0.1", self.port)
        except OSError as error:
            self.error(str(error))

    async def measure(self, warmup_s: float, seconds: float, pid: int) -> Load:
        for _ in range(self.clients):
            await self.connect()
        await self._for(warmup_s)
        self.latencies_s.clear()
        self.first_bytes_s.clear()
        before, began = cpu_s(pid), time.perf_counter()
        own = time.process_time()
        await self._for(seconds)
        took, used, own = time.perf_counter() - began, cpu_s(pid) - before, time.process_time() - own
        self.stopped = True
        latencies = sorted(self.latencies_s)
        return Load(
            requests=len(latencies),
            seconds=took,
            errors=self.errors,
            first_error=self.first_error,
            p50_ms=1e3 * statistics.median(latencies) if latencies else float("nan"),
            p99_ms=1e3 * latencies[int(0.99 * len(latencies))] if latencies else float("nan"),
            first_byte_ms=1e3 * statistics.median(self.first_bytes_s) if latencies else float("nan"),
            gateway_cpu_s=used,
            generator_cpu_s=own,
        )

    async def _for(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.failed.wait()
        except TimeoutError:
            pass


class Client(asyncio.Protocol):
    """One connection. Its first answer is kept and looked at as a whole; of the others only the end is looked for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._kept: list[bytes] | None = []
        self._asking = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        self._head = b""
        self._left = -1
        self._chunked = False
        self._tail = b""
        self._asking = True
        self._asked = time.perf_counter()
        self._transport.write(self._run.request)

    def data_received(self, data: bytes) -> None:
        if self._kept is not None:
            self._kept.append(data)
        if self._left < 0 and not self._chunked:
            if not self._head:
                self._first_byte = time.perf_counter()
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._head[end + 4 :]
            self._read_head(self._head[:end].lower())
        if self._chunked:
            self._tail = data[-5:] if len(data) >= 5 else (self._tail + data)[-5:]
            if self._tail == b"0\r\n\r\n":
                self._whole()
        else:
            self._left -= len(data)
            if self._left <= 0:
                self._whole()

    def _read_head(self, head: bytes) -> None:
        self._chunked = b"\r\ntransfer-encoding: chunked" in head
        at = head.find(b"\r\ncontent-length:")
        self._left = int(head[at + 17 :].split(b"\r", 1)[0]) if at > 0 else 0
        self._closes = b"\r\nconnection: close" in head
        if not head.startswith(b"http/1.1 200"):
            self._run.error(self._head[-600:].decode(errors="replace"))

    def _whole(self) -> None:
        now = time.perf_counter()
        run = self._run
        run.latencies_s.append(now - self._asked)
        run.first_bytes_s.append(self._first_byte - self._asked)
        if self._kept is not None:
            self._check(b"".join(self._kept))
            self._kept = None
        self._asking = False
        if run.stopped:
            self._transport.abort()
        elif not self._closes:
            self._ask()

    def _check(self, answer: bytes) -> None:
        if self._run.stream and (answer.count(b'"delta"') < CHUNKS or b"[DONE]" not in answer):
            self._run.error(f"a stream of {answer.count(b'data: ')} events: {answer[:200]!r}")
        elif not self._run.stream and b'"content"' not in answer:
            self._run.error(f"not an answer: {answer[:200]!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        run = self._run
        if run.stopped:
            return
        if self._asking:
            run.error(f"connection lost: {exc}")
        if not run.stopped:
            self._again = asyncio.ensure_future(run.connect())


def cpu_s(pid: int) -> float:
    """CPU time that a process and its children have used, in seconds; 0 for pid 0."""
    if not pid:
        return 0.0
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return sum(times.user + times.system for times in (member.cpu_times() for member in family))


def main() -> None:
    """Run with the given arguments and print the result as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--unique", action="store_true", help="every request asks something else")
    parser.add_argument("--warmup", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--pid", type=int, default=0, help="of the gateway whose CPU time is read")
    args = parser.parse_args()
    run = Run(args.port, args.clients, args.stream, args.unique)
    print(json.dumps(asdict(uvloop.run(run.measure(args.warmup, args.seconds, args.pid)))))


if __name__ == "__main__":
    main()
