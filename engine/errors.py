"""What can go wrong in the engine, as one tree.

``EngineError``
    ``InvalidRequest``: the caller's fault (400), with the field it is about
        ``ContextExceeded``: prompt and answer do not fit in the context; carries both numbers
        ``UnknownModel``: the model that was asked for is not the one that is served (404)
    ``ModelError``: the model cannot be served; raised while it loads
        ``UnsupportedModel``: an architecture, a scheme or a precision that this engine or this machine does not have
        ``BrokenModel``: a file is missing, or a tensor is missing, of the wrong shape or not finite
    ``RequestFailed``: a request failed while it ran, others go on
        ``OutOfMemory``: it did not fit in memory even alone
        ``Poisoned``: its numbers stopped being finite
    ``Loading``: the model is not there yet (503)
    ``Overloaded``: the queue is full (503)
    ``EngineStopped``: the engine ends, or has ended (503)

Foreign exceptions become one of these where they are caught, and nowhere else.
"""

from __future__ import annotations


class EngineError(Exception):
    """The root; ``status`` is the HTTP status of an answer that says it, ``kind`` its ``type`` in OpenAI's form,
    ``code`` its ``code`` there.
    """

    status = 500
    kind = "server_error"
    code: str | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(EngineError):
    """The request is at fault; ``field`` names the field of the body, when there is one."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextExceeded(InvalidRequest):
    """The prompt alone, or with the answer asked for, is longer than the context. All numbers are in tokens."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context: int, field: str = "messages") -> None:
        super().__init__(f"the prompt has {prompt_tokens} tokens, the context holds {context}", field)
        self.prompt_tokens = prompt_tokens
        self.context = context


class UnknownModel(InvalidRequest):
    """The model that was asked for is not the one that is served."""

    status = 404
    code = "model_not_found"


class ModelError(EngineError):
    """The model cannot be served."""


class UnsupportedModel(ModelError):
    """An architecture, a scheme or a precision that this engine or this machine does not have."""


class BrokenModel(ModelError):
    """A file is missing, or a tensor is missing, of the wrong shape or not finite."""


class RequestFailed(EngineError):
    """A request failed while it ran; others go on."""


class OutOfMemory(RequestFailed):
    """A request did not fit in memory even alone."""


class Poisoned(RequestFailed):
    """A request's numbers stopped being finite."""


class Loading(EngineError):
    """The model is not there yet."""

    status = 503
    kind = "unavailable_error"
    code = "loading"


class Overloaded(EngineError):
    """The queue is full."""

    status = 503
    kind = "overloaded_error"


class EngineStopped(EngineError):
    """The engine ends, or has ended."""

    status = 503
