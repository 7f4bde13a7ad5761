"""The two ways in which making an engine ends badly, and the exit codes that tell them apart."""

from __future__ import annotations

OK = 0
FAILED = 1
UNAVAILABLE = 75  # EX_TEMPFAIL of sysexits.h: callers skip, loudly


class KitError(Exception):
    """Making something did not work; the message is one line for a person."""

    exit_code = FAILED


class UnavailableError(KitError):
    """It cannot be had here now: a registry does not answer, a tool is missing, another process is still making it."""

    exit_code = UNAVAILABLE


class ChecksumError(KitError):
    """What arrived is not what was asked for."""
