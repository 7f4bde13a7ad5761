"""Ctrl+C ends what watches the keyboard, wherever it arrives."""

from __future__ import annotations

import signal
import sys

import pytest

from gateway.cli.keyboard import single_keys


def test_ctrl_c_ends_a_wait_at_once() -> None:
    with single_keys() as keys:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert keys.quit_pressed(3600.0)


def test_ctrl_c_is_not_lost_where_python_drops_what_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deleted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: dropped.append(what.exc_type))
    with single_keys() as keys:
        assert not keys.quit_pressed(0.0)
        Deleted()
        assert dropped == [KeyboardInterrupt]
        assert keys.quit_pressed(3600.0)


def test_afterwards_ctrl_c_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with single_keys():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
