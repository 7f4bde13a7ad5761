"""What can go wrong with an engine, as one tree. Foreign exceptions become one of these at the adapter, nowhere else.

::

    EngineError
    ├── Unreachable   no connection: refused, no such host, TLS failure        counts for the breaker   next candidate
    ├── Loading       alive, its model is not ready yet                        a state, not a fault     next candidate
    ├── Busy          alive, refuses more work for now (429, 503, pool full)   not a fault              next candidate
    ├── Rejected      the request is wrong for this engine (4xx)               not a fault              see Rejected
    ├── Broken        nonsense, a 5xx, or gone before the first byte           counts for the breaker   next candidate
    ├── TimedOut      silent past a limit                                      counts for the breaker   next candidate
    └── Interrupted   died after the first byte                                counts for the breaker   never retried
"""

from __future__ import annotations

from typing import ClassVar


class EngineError(Exception):
    """Base of all engine faults. ``engine`` is the engine instance's name, filled in by the adapter."""

    counts_for_breaker: ClassVar[bool] = False
    retryable: ClassVar[bool] = True
    """Whether another candidate may be tried, as long as the client has not been sent a byte."""

    def __init__(self, message: str, *, engine: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.engine = engine


class Unreachable(EngineError):
    """No connection could be made."""

    counts_for_breaker = True


class Loading(EngineError):
    """The engine is alive and its model is being loaded."""

    def __init__(self, message: str, *, engine: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, engine=engine)
        self.retry_after_s = retry_after_s


class Busy(EngineError):
    """The engine is alive and takes no more work for now."""

    def __init__(self, message: str, *, engine: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, engine=engine)
        self.retry_after_s = retry_after_s


class Rejected(EngineError):
    """The engine says that the request is wrong: ``status`` (4xx) and its error, in OpenAI's form, in ``error``.

    Another engine is asked only where it could answer differently: a context that is too small
    (``code == "context_length_exceeded"``), a capability that this engine lacks after all (``code == "unsupported"``)
    or a model that it no longer has (``code == "model_not_found"``).
    """

    retryable = False

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        engine: str = "",
        type_: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, engine=engine)
        self.status = status
        self.type = type_
        self.param = param
        self.code = code

    @property
    def elsewhere(self) -> bool:
        """Whether a different deployment could accept the same request."""
        return self.code in {"context_length_exceeded", "unsupported", "model_not_found"}


class Broken(EngineError):
    """The engine answered nonsense or a server error, or closed the connection before it answered."""

    counts_for_breaker = True


class TimedOut(EngineError):
    """The engine was silent past a limit."""

    counts_for_breaker = True


class Interrupted(EngineError):
    """The engine ended an answer in its middle."""

    counts_for_breaker = True
    retryable = False
