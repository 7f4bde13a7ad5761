"""Settings of the engines: where one is or how it is started, and what the operator knows better than it."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from gateway.settings_base import Group, Name, Seconds, UserPath
from policies.types import Capability, Precision


class EngineKind(StrEnum):
    """The engines that have an adapter; `openai` is any other that speaks OpenAI's protocol."""

    BUILTIN = "builtin"
    LLAMACPP = "llamacpp"
    VLLM = "vllm"
    OLLAMA = "ollama"
    LMSTUDIO = "lmstudio"
    MLX = "mlx"
    SGLANG = "sglang"
    TGI = "tgi"
    TRTLLM = "trtllm"
    LLAMAFILE = "llamafile"
    KOBOLDCPP = "koboldcpp"
    OPENAI = "openai"
    HOSTED = "hosted"


class LaunchKind(StrEnum):
    """The engines that Paceline can start; `builtin` is its own."""

    BUILTIN = "builtin"
    LLAMACPP = "llamacpp"
    VLLM = "vllm"
    OLLAMA = "ollama"


def _web_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an engine's address starts with http:// or https:// and has a host")
    if "@" in parts.netloc:
        raise ValueError("credentials do not belong into an address: use 'api_key_env'")
    if parts.query or parts.fragment:
        raise ValueError("an engine's address ends with its path: leave out '?…' and '#…'")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port has to be a number from 1 to 65535") from None
    return url.rstrip("/").removesuffix("/v1")


class LaunchSettings(Group):
    """An engine that Paceline starts, watches and stops."""

    engine: LaunchKind = Field(description="The engine to start.", examples=["llamacpp"])
    model: str = Field(
        default="",
        description="A GGUF file for llama.cpp, a model folder or hub name for vLLM, a GGUF file or a model folder for "
        "the built-in engine; for Ollama the folder of its models, where that is not Ollama's own.",
        examples=["models/SmolLM2-135M-Instruct-Q8_0.gguf"],
    )
    alias: str = Field(
        default="", description="What the engine calls the model. Left out: as its file or folder.", examples=["small"]
    )
    binary: UserPath | None = Field(
        default=None,
        description="The program. Left out: found on PATH; for llama.cpp then the one inside the package xllamacpp.",
        examples=["/usr/local/bin/llama-server"],
    )
    python: UserPath | None = Field(
        default=None,
        description="The Python in whose environment vLLM is installed, or for the built-in engine what its extra "
        "asks for, where that is not Paceline's own.",
        examples=["~/vllm/.venv/bin/python"],
    )
    context: int | None = Field(default=None, ge=1, description="Context per request, in tokens.", examples=[8192])
    slots: int | None = Field(default=None, ge=1, description="Requests that run at once.", examples=[4])
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads. Left out: the engine's choice.", examples=[8]
    )
    batch: int | None = Field(
        default=None,
        ge=1,
        description="Prompt tokens read in one step. Smaller: a client that leaves is noticed sooner.",
        examples=[256],
    )
    port: int | None = Field(
        default=None, ge=1, le=65535, description="Port on 127.0.0.1. Left out: one that is free.", examples=[18080]
    )
    args: tuple[str, ...] = Field(
        default=(), description="Further arguments, passed on as they are.", examples=[["--flash-attn", "on"]]
    )
    env: dict[str, str] = Field(
        default={},
        repr=False,
        description="Variables added to its environment.",
        examples=[{"CUDA_VISIBLE_DEVICES": "0"}],
    )
    ready_timeout_s: Seconds = Field(
        default=600.0,
        description="Seconds in which it has to become healthy before that counts as a failure.",
        examples=[120],
    )

    @model_validator(mode="after")
    def _complete(self) -> LaunchSettings:
        if self.engine is not LaunchKind.OLLAMA and not self.model:
            raise ValueError(f"{self.engine} needs 'model': what should it load?")
        if self.python is not None and self.engine not in (LaunchKind.BUILTIN, LaunchKind.VLLM):
            raise ValueError("'python' is for vLLM and the built-in engine only; other engines have 'binary'")
        if self.binary is not None and self.engine is LaunchKind.BUILTIN:
            raise ValueError("the built-in engine has no 'binary': leave it out, or say its 'python'")
        return self


class HardwareSettings(Group):
    """Where an engine runs that Paceline cannot see. Engines with a device in common slow each other."""

    host: str = Field(min_length=1, description="Name of the machine.", examples=["rack-3"])
    devices: tuple[str, ...] = Field(
        default=("cpu",),
        description="Its devices that the engine uses: `cpu`, or GPU names.",
        examples=[["gpu0", "gpu1"]],
    )
    description: str = Field(default="", description="For people and records.", examples=["2 × L40S, 48 GB"])


class EngineSettings(Group):
    """One engine: `url` for one that runs, `launch` for one to start."""

    name: Name = Field(description="Name of this instance, in deployment ids and headers.", examples=["workstation"])
    kind: EngineKind | None = Field(
        default=None, description="What it is. Left out: recognised by what it answers.", examples=["vllm"]
    )
    url: Annotated[str, AfterValidator(_web_address)] | None = Field(
        default=None, description="Address of an engine that runs already.", examples=["http://127.0.0.1:8000"]
    )
    launch: LaunchSettings | None = Field(
        default=None, description="How to start it.", examples=[{"engine": "llamacpp", "model": "models/tiny.gguf"}]
    )
    api_key: SecretStr | None = Field(
        default=None, description="Key that the engine asks for. Better: `api_key_env`.", examples=["…"]
    )
    api_key_env: str | None = Field(
        default=None,
        min_length=1,
        description="Name of the variable that holds the engine's key.",
        examples=["VLLM_API_KEY"],
    )
    precision: Precision | None = Field(
        default=None, description="What its weights run in, where the engine does not say.", examples=["bf16"]
    )
    scheme: str = Field(default="", description="The quantisation scheme, where it does not say.", examples=["AWQ"])
    slots: int | None = Field(
        default=None, ge=1, description="Requests that it runs at once, where it does not say.", examples=[4]
    )
    models: dict[str, str] = Field(
        default={},
        description="Its own model name → the name that clients ask for. Others get a name derived from their own.",
        examples=[{"qwen3:8b-q4_K_M": "qwen3-8b"}],
    )
    options: dict[str, object] = Field(
        default={},
        repr=False,
        description="Fields added to each request that does not have them.",
        examples=[{"keep_alive": "30m"}],
    )
    capabilities: dict[Capability, bool] = Field(
        default={},
        description="What it can do after all (`true`) or should not be asked for (`false`), against its own word.",
        examples=[{"tools": False}],
    )
    model_dir: UserPath | None = Field(
        default=None,
        description="Readable folder of its model: precision and tokeniser are read from there.",
        examples=["/models/qwen3-8b"],
    )
    hardware: HardwareSettings | None = Field(
        default=None, description="Where it runs, when that is another machine.", examples=[{"host": "rack-3"}]
    )
    verify_tls: bool = Field(default=True, description="Check the certificate of an https address.", examples=[True])
    connect_timeout_s: Seconds = Field(default=3.0, description="Seconds to connect.", examples=[3])
    first_byte_timeout_s: Seconds = Field(
        default=600.0, description="Seconds of silence before the first token: queue, load and prefill.", examples=[600]
    )
    silence_timeout_s: Seconds = Field(
        default=300.0, description="Seconds of silence between two tokens.", examples=[120]
    )

    @model_validator(mode="after")
    def _complete(self) -> EngineSettings:
        if self.url is not None and self.launch is not None:
            raise ValueError("has both 'url' (an engine that runs) and 'launch' (one to start): keep one")
        if self.kind is EngineKind.HOSTED:
            if self.launch is not None:
                raise ValueError("a hosted API cannot be started: leave out 'launch'")
            if not self.models:
                raise ValueError("a hosted API needs 'models': its model name → the name that clients ask for")
        elif self.url is None and self.launch is None:
            raise ValueError("needs 'url' (an engine that runs) or 'launch' (one to start)")
        if self.launch is not None and self.kind is not None and self.kind != self.launch.engine.value:
            raise ValueError(f"'kind' says {self.kind} and 'launch' starts {self.launch.engine}: leave out 'kind'")
        if self.api_key is not None and self.api_key_env is not None:
            raise ValueError("has both 'api_key' and 'api_key_env': keep one")
        return self

    def key(self) -> str:
        """Return the key that the engine asks for, read from the environment where it is there; empty without one."""
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        return os.environ.get(self.api_key_env, "") if self.api_key_env else ""
