"""litellm's exceptions as EngineErrors. Told apart by name: litellm is imported by no one but the hosted adapter."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from adapters.errors import Broken, Busy, EngineError, Rejected, TimedOut, Unreachable

_TEXT_LIMIT: Final = 600
_CHAIN_LIMIT: Final = 16
_NO_CONNECTION: Final = frozenset(["ConnectError", "ConnectTimeout", "ClientConnectorError"])
_PREFIX: Final = re.compile(r"^((litellm\.)?\w+: )+(\w+Exception - )?")


def _retry_after_s(error: Any) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return float(headers.get("retry-after", ""))
    except ValueError:
        return None


def _rejected(code: str | None = None, status: int = 400) -> Callable[[str, Any], EngineError]:
    return lambda text, error: Rejected(text, status=status, code=code, param=getattr(error, "param", None))


def _refused(text: str, error: Any) -> EngineError:
    # Not the provider's own words: they repeat parts of the key.
    return Broken(f"the provider refuses the key or the account (HTTP {getattr(error, 'status_code', '?')})")


_BY_NAME: Final[dict[str, Callable[[str, Any], EngineError]]] = {
    "ContextWindowExceededError": _rejected("context_length_exceeded"),
    "UnsupportedParamsError": _rejected("unsupported"),
    "ContentPolicyViolationError": _rejected("content_policy_violation"),
    "AuthenticationError": _refused,
    "PermissionDeniedError": _refused,
    "PaymentRequiredError": _refused,
    "NotFoundError": _rejected("model_not_found", 404),
    "BadRequestError": _rejected(),
    "UnprocessableEntityError": _rejected(None, 422),
    "RateLimitError": lambda text, error: Busy(text, retry_after_s=_retry_after_s(error)),
    "ServiceUnavailableError": lambda text, error: Busy(text, retry_after_s=_retry_after_s(error)),
    "APITimeoutError": lambda text, _: TimedOut(text),
    "TimeoutException": lambda text, _: TimedOut(text),
    "InternalServerError": lambda text, _: Broken(text),
    "APIConnectionError": lambda text, _: Unreachable(text),
}
"""The first class of an exception's ancestry that stands here decides: litellm's own, then openai's, then httpx's."""


def engine_error(error: BaseException, *, engine: str, secret: str) -> EngineError:
    """What a foreign exception means, without the ``secret`` that its text may hold."""
    text = _PREFIX.sub("", str(error).partition("\n")[0])[:_TEXT_LIMIT] or type(error).__name__
    if secret:
        text = text.replace(secret, "…")
    make = next((_BY_NAME[c.__name__] for c in type(error).__mro__ if c.__name__ in _BY_NAME), None)
    if _never_connected(error):  # litellm makes an InternalServerError of it
        mapped: EngineError = Unreachable(text)
    else:
        mapped = make(text, error) if make is not None else Broken(text)
    mapped.engine = engine
    return mapped


def _never_connected(error: BaseException) -> bool:
    cause: BaseException | None = error
    for _ in range(_CHAIN_LIMIT):
        if cause is None:
            break
        if type(cause).__name__ in _NO_CONNECTION:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
