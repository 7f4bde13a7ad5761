"""Errors as clients see them: OpenAI's form, the right status, and never a secret.

========================  ======  =====================  ========================
what happened             status  type                   code
========================  ======  =====================  ========================
the request is wrong      4xx     invalid_request_error  the engine's own, or ours
no such model             404     invalid_request_error  model_not_found
nobody can serve it       400     invalid_request_error  no_deployment
nobody can serve it now   503     server_error           no_deployment_ready
nobody can in time        503     server_error           deadline
too much at once          429     rate_limit_error       too_many_requests
``Busy``                  429     rate_limit_error       engine_busy
``Loading``               503     server_error           model_loading
``Unreachable``           503     server_error           engine_unreachable
``Broken``                502     server_error           engine_failed
``TimedOut``              504     server_error           engine_timed_out
``Interrupted``           502     server_error           engine_interrupted
========================  ======  =====================  ========================
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from adapters.errors import Broken, Busy, EngineError, Interrupted, Loading, Rejected, TimedOut, Unreachable
from gateway.redaction import redact
from policies.types import Decision

Header = tuple[bytes, bytes]

INVALID_REQUEST = "invalid_request_error"
AUTHENTICATION = "authentication_error"
PERMISSION = "permission_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"

DEFAULT_RETRY_AFTER_S = 5.0

MAX_NAME_SHOWN = 200
"""Characters of a caller's model name that are compared and repeated."""

_STATUS_TYPES = {401: AUTHENTICATION, 403: PERMISSION, 429: RATE_LIMIT}

_FAULTS: tuple[tuple[type[EngineError], int, str, str], ...] = (
    (Busy, 429, RATE_LIMIT, "engine_busy"),
    (Loading, 503, SERVER, "model_loading"),
    (Unreachable, 503, SERVER, "engine_unreachable"),
    (TimedOut, 504, SERVER, "engine_timed_out"),
    (Interrupted, 502, SERVER, "engine_interrupted"),
    (Broken, 502, SERVER, "engine_failed"),
)


class ApiError(Exception):
    """An answer that is an error. ``type`` follows from the status unless given; ``retry_after_s`` becomes a header.

    ``details`` are further fields of the error, beside those of OpenAI's form.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Iterable[Header] = (),
        retry_after_s: float | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = redact(message)
        usual = _STATUS_TYPES.get(status) or (INVALID_REQUEST if status < 500 else SERVER)
        self.type = redact(type_ or usual)
        self.param = param and redact(param)
        self.code = code and redact(code)
        self.details = details or {}
        self.headers: tuple[Header, ...] = tuple(headers)
        if retry_after_s is not None:
            self.headers += ((b"retry-after", retry_after(retry_after_s)),)

    def encode(self) -> bytes:
        """Return the JSON body: ``{"error": {"message", "type", "param", "code"}}``."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code, **self.details}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """Return the error as one whole server-sent event, for a stream that has begun."""
        return b"data: " + self.encode() + b"\n\n"


def retry_after(seconds: float) -> bytes:
    """Return a ``Retry-After`` value: whole seconds, 1 at least."""
    return str(max(1, math.ceil(seconds))).encode()


def from_engine_error(error: EngineError) -> ApiError:
    """Return what a client is told when an engine's fault is the last word.

    A rejected request keeps the engine's status, message, type, param and code, so that no SDK retries what cannot
    succeed. A fault names the engine, and says what happened without its address's credentials.
    """
    if isinstance(error, Rejected):
        return ApiError(error.status, error.message, type_=error.type, param=error.param, code=error.code)
    status, type_, code = next(
        ((status, type_, code) for kind, status, type_, code in _FAULTS if isinstance(error, kind)),
        (502, SERVER, "engine_failed"),
    )
    wait_s = None
    if isinstance(error, Busy | Loading):
        wait_s = DEFAULT_RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
    message = f"{error.engine}: {error.message}" if error.engine else error.message
    return ApiError(status, message, type_=type_, code=code, retry_after_s=wait_s)


def no_such_model(name: str, known: Iterable[str]) -> ApiError:
    """Return the 404 for an unknown model, with the names that are near, or all when they are few."""
    name = name[:MAX_NAME_SHOWN]
    names = sorted(set(known))
    by_folded = {known_name.casefold(): known_name for known_name in names}
    near = [by_folded[match] for match in difflib.get_close_matches(name.casefold(), by_folded, n=3, cutoff=0.5)]
    if near:
        hint = f"Did you mean {_either(near)}?"
    elif not names:
        hint = "No engine serves a model at the moment: `paceline doctor` says why."
    elif len(names) <= 10:
        hint = f"There is {_listed(names)}."
    else:
        hint = f"GET /v1/models lists all {len(names)}."
    return ApiError(404, f"The model {name!r} does not exist. {hint}", param="model", code="model_not_found")


def no_deployment(model: str, decision: Decision, temporary: frozenset[str]) -> ApiError:
    """Return the one answer to a request that no deployment serves, with each deployment and why not.

    ``temporary`` are the rejection codes that pass by themselves. When one of them is all that stands between the
    request and a deployment, it is a 503 that may be retried; otherwise a 400 that would always fail.
    """
    causes = "; ".join(f"{rejection.deployment.id}: {rejection.reason}" for rejection in decision.rejected)
    if any(rejection.code in temporary for rejection in decision.rejected):
        return ApiError(
            503,
            f"No deployment of {model!r} can take this request now. {causes}",
            code="no_deployment_ready",
            retry_after_s=DEFAULT_RETRY_AFTER_S,
        )
    return ApiError(400, f"No deployment can serve this request for {model!r}. {causes}", code="no_deployment")


def too_busy(message: str, retry_after_s: float) -> ApiError:
    """Return the 429 for a limit of our own."""
    return ApiError(429, message, code="too_many_requests", retry_after_s=retry_after_s)


def _either(names: Sequence[str]) -> str:
    return " or ".join(repr(name) for name in names)


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return "only " + repr(names[0])
    return ", ".join(repr(name) for name in names[:-1]) + f" and {names[-1]!r}"
