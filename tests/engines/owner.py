"""A process that owns a managed engine, prints its process id, and waits to be killed: ``owner.py LOOP OPTIONS…``."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from engines import little

from adapters.launch import Command, LaunchSpec
from adapters.managed import ManagedEngine


async def main() -> None:
    def build(_: LaunchSpec, port: int) -> Command:
        return Command(little.arguments(*sys.argv[2:], port=port), {}, "", "/health")

    engine = ManagedEngine(LaunchSpec("little", "little", stop_timeout_s=0.2), build=build)
    engine.start()
    await engine.wait_up()
    print(engine.pid, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    (uvloop.run if sys.argv[1] == "uvloop" else asyncio.run)(main())
