"""What Ollama tells of itself: /api/version, /api/tags, /api/ps, /api/show."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from adapters.errors import Broken, EngineError, Rejected
from adapters.heard import NOT_JSON, size_in
from adapters.openai_errors import error_from_response
from adapters.transport import Transport

_T = TypeVar("_T")

POLL_TIMEOUT_S: Final = 10.0
_ANSWER_LIMIT: Final = 32 * 1024 * 1024
"""/api/show of a large model carries its licence, its template and the list of its tensors."""

_WEIGHTS: Final = re.compile(r"^(?:FROM|ADAPTER) .+$", re.MULTILINE)
_PARAMETER: Final = re.compile(r"^(\w+)\s+(.*)$", re.MULTILINE)


class Version(msgspec.Struct):
    version: str


class Details(msgspec.Struct):
    format: str = ""
    family: str = ""
    quantization_level: str = ""


class Installed(msgspec.Struct):
    """A model of /api/tags. One with a ``remote_host`` runs somewhere else and is only forwarded."""

    name: str
    digest: str = ""
    details: Details = msgspec.field(default_factory=Details)
    remote_host: str = ""


class Tags(msgspec.Struct):
    models: list[Installed] | None = None


class Running(msgspec.Struct):
    """A model of /api/ps: resident now, with the context it really runs with."""

    name: str
    context_length: int = 0


class Ps(msgspec.Struct):
    models: list[Running] | None = None


class Show(msgspec.Struct):
    capabilities: list[str] | None = None
    model_info: dict[str, Any] = msgspec.field(default_factory=dict)
    parameters: str = ""
    modelfile: str = ""

    @property
    def weights(self) -> str:
        """What is loaded for it. Models that differ in template or parameters only share that, and one runner."""
        return "\n".join(_WEIGHTS.findall(self.modelfile))

    @property
    def context(self) -> int | None:
        """The context in tokens that the model was trained for."""
        lengths = (value for key, value in self.model_info.items() if key.endswith(".context_length"))
        return next(filter(None, map(size_in, lengths)), None)

    @property
    def num_ctx(self) -> int | None:
        """The context that its Modelfile asks for."""
        for name, value in _PARAMETER.findall(self.parameters):
            if name == "num_ctx" and value.strip().isdecimal():
                return int(value)
        return None


async def ask(
    transport: Transport, type_: type[_T], path: str, engine: str, *, body: bytes = b"", secret: str = ""
) -> _T:
    """GET ``path`` (POST with a ``body``) and decode the answer. Raises ``EngineError``, without the ``secret``."""
    method, headers = ("POST", (("Content-Type", "application/json"),)) if body else ("GET", ())
    try:
        response = await transport.request(
            method, path, body=body, headers=headers, header_timeout_s=POLL_TIMEOUT_S, read_timeout_s=POLL_TIMEOUT_S
        )
        try:
            data = await response.read(_ANSWER_LIMIT)
        finally:
            response.close()
        if response.status != 200:
            error = error_from_response(response.status, response.headers, data, secret=secret)
            if isinstance(error, Rejected) and error.code == "unsupported":
                raise Broken(f"this is no Ollama: it answers {path} with {response.status}")
            raise error
    except EngineError as error:
        error.engine = engine
        raise
    try:
        return msgspec.json.decode(data, type=type_)
    except NOT_JSON as error:
        raise Broken(
            f"{engine} answered {path} with something else than Ollama's JSON: {error}", engine=engine
        ) from None
