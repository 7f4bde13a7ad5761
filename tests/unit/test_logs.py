from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from gateway.logs import set_up_logging
from gateway.redaction import redact
from gateway.settings import LogFormat, LogLevel, LogSettings

SECRET = "an-engines-own-secret"


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", "paceline", "uvicorn", "uvicorn.error", "uvicorn.access")]
    before = [(logger.handlers[:], logger.level, logger.propagate, logger.disabled) for logger in loggers]
    yield
    logging.captureWarnings(False)
    for logger, (handlers, level, propagate, disabled) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate, logger.disabled = handlers, propagate, disabled
        logger.setLevel(level)


def test_piped_logs_are_json_lines_with_level_logger_and_message() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(), stream)
    logging.getLogger("paceline.fleet").info("engine %s is up", "a")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["message"]) == ("info", "paceline.fleet", "engine a is up")
    assert line["time"].endswith("+00:00")


def test_text_is_one_line_for_people() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(format=LogFormat.TEXT), stream)
    logging.getLogger("paceline").warning("careful")
    assert stream.getvalue().rstrip().endswith("WARNING careful")


@pytest.mark.parametrize("format_", [LogFormat.TEXT, LogFormat.JSON])
def test_no_secret_reaches_the_log_in_a_message_an_argument_or_a_traceback(format_: LogFormat) -> None:
    redact.learn([SECRET])
    stream = io.StringIO()
    set_up_logging(LogSettings(format=format_), stream)
    logger = logging.getLogger("uvicorn.error")
    logger.error("key %s of http://u:pa55w0rd@h", SECRET)
    try:
        raise ValueError(SECRET)
    except ValueError:
        logger.exception("failed")
    assert "ValueError" in stream.getvalue()
    assert SECRET not in stream.getvalue()
    assert "pa55w0rd" not in stream.getvalue()


def test_libraries_speak_from_warnings_on_and_the_server_writes_no_line_per_request() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(), stream)
    logging.getLogger("uvicorn.error").info("started")
    logging.getLogger("uvicorn.access").warning("GET /")
    logging.getLogger("some.library").info("chatter")
    assert stream.getvalue() == ""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "old" in stream.getvalue()


def test_the_level_is_as_configured() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(level=LogLevel.ERROR), stream)
    logging.getLogger("paceline.x").warning("not this")
    logging.getLogger("paceline.x").error("this")
    assert "not this" not in stream.getvalue()
    assert "this" in stream.getvalue()
