"""The log: one handler on standard error, as text or as JSON lines, from which every secret is taken out."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from gateway.redaction import redact
from gateway.settings_parts import LogFormat, LogLevel, LogSettings
from gateway.telemetry.current import CURRENT

_OWN_LOGGER = "paceline"


class TextFormatter(logging.Formatter):
    """Time, level and message on one line, for people, with the request that it is about; a traceback below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without secrets."""
        return redact(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line without the traceback."""
        line = super().formatMessage(record)
        current = CURRENT.get()
        if current is None:
            return line
        if current.request_id not in record.message:
            line += f" request={current.request_id}"
        return f"{line} trace={current.trace_id}" if current.trace_id else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message; the request's and its trace's id, and the exception.

    The last three only where there are any.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without secrets."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if (current := CURRENT.get()) is not None:
            line["request_id"] = current.request_id
            if current.trace_id:
                line["trace_id"] = current.trace_id
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send the log of Paceline, the server and all libraries to ``stream`` (standard error when ``None``).

    Libraries, the server among them, speak up from warnings on only; the server's own line per request is off.
    """
    stream = stream or sys.stderr
    as_text = settings.format is LogFormat.TEXT or (settings.format is LogFormat.AUTO and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if settings.level is LogLevel.DEBUG else logging.WARNING)
    logging.getLogger(_OWN_LOGGER).setLevel(settings.level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger("uvicorn.access").disabled = True
    logging.captureWarnings(True)
