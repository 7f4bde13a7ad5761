"""The log: one handler on standard error, as text or as JSON lines, from which every secret is taken out."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from gateway.redaction import redact
from gateway.settings_parts import LogFormat, LogLevel, LogSettings

_OWN_LOGGER = "paceline"


class TextFormatter(logging.Formatter):
    """Time, level and message on one line, for people; a traceback below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without secrets."""
        return redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message and, where there is one, the exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without secrets."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
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
