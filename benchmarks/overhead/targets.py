"""What is measured: each gateway's command and configuration, one process (or worker) each."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Final

from benchmarks.overhead.load import KEY
from benchmarks.overhead.upstream import MODEL

PEERS: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / "peers"
"""Where ``benchmarks/overhead/peers`` puts an environment for each peer."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a command is made from: ports to use, and a folder for its files."""

    port: int
    upstreams: list[int]
    spare_port: int
    folder: Path

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway: its program, where it is looked for beside PATH, and its arguments."""

    name: str
    program: str
    arguments: Callable[[Site], list[str]]
    environment: dict[str, str] = field(default_factory=dict)

    def find(self) -> str | None:
        """The program: in a peer's own environment, beside this Python, or on PATH."""
        own = [PEERS / self.name / "bin", Path(sys.executable).parent]
        path = os.pathsep.join([*map(str, own), os.environ.get("PATH", ""), "/usr/sbin"])
        return shutil.which(self.program, path=path)


_NO_CACHE: Final = {"mode": "off"}


def _nginx(site: Site) -> list[str]:
    folders = "".join(
        f"{kind}_temp_path {site.folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    conf = f"""\
        worker_processes 1; daemon off; pid {site.folder}/pid; error_log {site.folder}/error.log;
        events {{ worker_connections 8192; }}
        http {{
            access_log off; {folders} tcp_nodelay on; keepalive_requests 100000000;
            upstream up {{ server 127.0.0.1:{site.upstreams[0]}; keepalive 1024; keepalive_requests 100000000; }}
            server {{
                listen 127.0.0.1:{site.port};
                location / {{
                    proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
                }}
            }}
        }}
        """
    return ["-p", str(site.folder), "-c", site.write("nginx.conf", dedent(conf))]


def _router(site: Site) -> list[str]:
    return (
        f"--host 127.0.0.1 --port {site.port} --worker-urls http://127.0.0.1:{site.upstreams[0]} "
        f"--policy round_robin --prometheus-port {site.spare_port}"
    ).split()


def _vllm_router(site: Site) -> list[str]:
    return [*_router(site), "--log-level", "error"]


def _sglang_router(site: Site) -> list[str]:
    return ["launch", *_router(site), "--log-level", "error"]


def litellm_arguments(site: Site, settings: Mapping[str, object] | None = None) -> list[str]:
    """Return LiteLLM's arguments, with its own settings (``litellm_settings``)."""
    parameters = {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{site.upstreams[0]}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": settings or {},
    }
    return ["--host", "127.0.0.1", "--port", str(site.port), "--config", site.write("litellm.yaml", json.dumps(config))]


def paceline_arguments(site: Site, cache: Mapping[str, object] = _NO_CACHE) -> list[str]:
    """Return Paceline's arguments, with settings of its cache: off, since the same request again is to be one."""
    engines = [
        {
            "name": f"up{number}",
            "kind": "vllm",
            "url": f"http://127.0.0.1:{port}",
            "precision": "bf16",
            "capabilities": {"completion": False},
            "models": {MODEL: MODEL},
        }
        for number, port in enumerate(site.upstreams)
    ]
    config = {
        "server": {"host": "127.0.0.1", "port": site.port},
        "auth": {"keys": [{"name": "load", "hash": "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()}]},
        "data_dir": str(site.folder / "data"),
        "cache": cache,
        "engines": engines,
    }
    return ["up", "--config", site.write("paceline.yaml", json.dumps(config))]


NGINX: Final = Target("nginx", "nginx", _nginx)
VLLM_ROUTER: Final = Target("vllm-router", "vllm-router", _vllm_router)
SGLANG_ROUTER: Final = Target("sglang-router", "smg", _sglang_router)
LITELLM: Final = Target("litellm", "litellm", litellm_arguments, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
PACELINE: Final = Target("paceline", "paceline", paceline_arguments)

TARGETS: Final = (NGINX, VLLM_ROUTER, SGLANG_ROUTER, LITELLM, PACELINE)
