"""A `llama-server` out of the xllamacpp package, for machines without the binary: ``python -m adapters.llama_server``.

It serves llama.cpp's own HTTP API in the foreground until SIGTERM or SIGINT; its log goes to stderr.

Example: python -m adapters.llama_server --model model.gguf --port 8080 --parallel 4 --ctx-size 4096
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop, then end the process with status 0. Returns 1 when it cannot serve."""
    options = _parser().parse_args(argv)
    try:
        import xllamacpp
    except ImportError as error:
        return _fail(f"xllamacpp cannot be imported ({error}); install it with: pip install 'paceline[llamacpp]'")
    if not Path(options.model).is_file():
        return _fail(f"no such model file: {options.model}")
    try:
        params = _params(xllamacpp, options)
    except OSError as error:
        return _fail(f"the chat template cannot be read: {error}")
    try:
        server = xllamacpp.Server(params)  # serves from its own threads for as long as the object lives
    except RuntimeError as error:
        return _fail(f"llama.cpp did not start with {options.model}: {error}")
    _say(f"serving at {server.listening_address}")
    _wait_for_stop_signal()
    # Not by the server's destructor: it waits for running requests to their ends. There is nothing to be saved.
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m adapters.llama_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", required=True, metavar="FILE", help="a GGUF file")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8080, help="port to listen on (default: %(default)s)")
    add("--parallel", type=int, default=1, metavar="N", help="slots: requests that run at once (default: %(default)s)")
    add("--ctx-size", type=int, default=4096, metavar="TOKENS", help="context of each slot (default: %(default)s)")
    add("--batch-size", type=int, default=2048, metavar="TOKENS", help="prompt tokens a step (default: %(default)s)")
    add("--threads", type=int, default=-1, metavar="N", help="threads that compute (default: llama.cpp's choice)")
    add("--n-gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU (default: as many as fit)")
    add("--alias", default="", help="the model's name in answers")
    add("--embeddings", action="store_true", help="serve embeddings")
    add("--pooling", choices=("none", "mean", "cls", "last"), help="of embeddings (default: what the model says)")
    template = parser.add_mutually_exclusive_group()
    template.add_argument("--chat-template", default="", metavar="JINJA", help="in place of the model's own")
    template.add_argument("--chat-template-file", default="", metavar="FILE", help="the same, from a file")
    return parser


def _params(xllamacpp: Any, options: argparse.Namespace) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.ctx_size * options.parallel
    params.n_batch = options.batch_size
    params.n_ubatch = min(params.n_ubatch, options.batch_size)
    params.cpuparams.n_threads = options.threads
    params.n_gpu_layers = options.n_gpu_layers
    params.embedding = options.embeddings
    if options.pooling:
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{options.pooling.upper()}")
    params.endpoint_metrics = True
    # What neither /props nor anything else tells: the adapter reads it, for the fingerprint of speed records.
    params.model_tags = {
        f"xllamacpp-{version('xllamacpp')}",
        f"batch-{options.batch_size}",
        f"threads-{options.threads if options.threads > 0 else 'default'}",
    }
    if options.alias:
        params.model_alias = {options.alias}
    if options.chat_template_file:
        params.chat_template = Path(options.chat_template_file).read_text()
    elif options.chat_template:
        params.chat_template = options.chat_template
    return params


def _wait_for_stop_signal() -> None:
    # Not earlier: a handler in Python runs only between bytecodes, so that it could not end a model that still loads,
    # while the default action can.
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()


def _fail(message: str) -> int:
    _say(message)
    return 1


def _say(message: str) -> None:
    sys.stderr.write(f"llama_server: {message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
