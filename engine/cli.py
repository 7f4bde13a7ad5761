"""``python -m engine``: serves one model over HTTP."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.options import Options
from engine.server import Served, Server, Service

PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8", "int4", "fp8")
KV_PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8", "fp8")
SPECULATIVE = ("ngram", "off")
BROKEN = 70
"""Exit status of an engine that broke while it served; 1 is that of a model that could not be loaded."""


def parser() -> argparse.ArgumentParser:
    """The command line's options."""
    whole = argparse.ArgumentParser(
        prog="python -m engine",
        description="Serve one model over HTTP, in OpenAI's forms: /v1/chat/completions, /v1/completions, "
        "/v1/embeddings. While the model loads, /ready tells how far it has come.",
        epilog="Example: python -m engine --model models/SmolLM2-135M-Instruct --precision int8 --context 8192",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    add = whole.add_argument
    add("--model", type=Path, required=True, metavar="PATH", help="a Hugging Face folder with safetensors, or a GGUF")
    add(
        "--served-name",
        metavar="NAME",
        help="the model's name in requests and answers; else that of its folder or file",
    )
    add("--host", help="the address to listen on: 127.0.0.1 unless said, which only this machine reaches")
    add("--port", type=_port, help="8000 unless said; 0 takes a free one")
    add("--precision", choices=PRECISIONS, help="of the weights: auto takes 16 bits if they fit, else int8, else int4")
    add("--kv-precision", choices=KV_PRECISIONS, help="of the cache of keys and values")
    add("--context", type=_count, metavar="TOKENS", help="prompt and answer together; else as much as fits, up to 8192")
    add("--max-sequences", type=_count, metavar="N", help="answers that are made at once: 32 unless said")
    add("--token-budget", type=_count, metavar="TOKENS", help="the most that one step computes")
    add("--blocks", type=_count, metavar="N", help="size of the cache in blocks; else by the memory that is free")
    add("--queue", type=_count, metavar="N", help="requests that may wait for their turn: 256 unless said")
    add("--threads", type=_count, metavar="N", help="CPU threads of each rank; else one a core, shared out among ranks")
    add("--device", help="cpu, cuda or cuda:N; else a GPU where there is one")
    add(
        "--tensor-parallel",
        dest="ranks",
        type=_count,
        metavar="N",
        help="processes that hold a share of each layer: on GPUs one each, on a CPU they share its cores",
    )
    add("--draft-model", type=Path, metavar="PATH", help="a smaller model with the same tokens that guesses ahead")
    add("--speculative", choices=SPECULATIVE, help="guess ahead from the prompt where that pays (no answer changes)")
    add("--no-prefix-cache", dest="prefix_cache", action="store_false", help="read each prompt anew")
    add("--step-limit-s", type=float, metavar="S", help="a step that takes longer hangs: the engine ends")
    return whole


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 65536:
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    options = Options(**vars(parser().parse_args(arguments)))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    def load(progress: Callable[[float], None]) -> Served:
        from engine.opening import open_served  # torch comes with it: the server listens before

        return open_served(options, progress, server.end, lost)

    def lost(why: str) -> None:
        if not server.should_exit:  # else the ranks end because this one does
            logging.error(why)
            service.fail(why)
            server.end()

    service = Service(load)
    server = Server(service, options.host, options.port)
    status = 0
    try:
        server.run()
        if service.failure is not None:
            logging.error("%s cannot be served: %s", options.model, service.failure.message)
            status = 1
        elif service.served is not None and not service.served.engine.healthy:
            status = BROKEN
    finally:
        for rank in multiprocessing.active_children():
            rank.kill()
    # A thread within native code need not come back; one that comes back to an interpreter that ends is torn out of it,
    # and torch ends the process with SIGABRT.
    if server.loading.is_alive() or (service.served is not None and not service.served.engine.ended):
        sys.stderr.flush()
        os._exit(status)
    return status
