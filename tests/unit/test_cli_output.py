from __future__ import annotations

import io
import json

import pytest

from gateway.cli.fleet_table import found_table, speed_tables
from gateway.cli.output import UserError, report, styled, table

INT4 = {
    "id": "llamacpp-8080",
    "model": "SmolLM2",
    "engine": "llamacpp",
    "engine_label": "llama.cpp",
    "engine_version": "b9549",
    "precision": "int4",
    "scheme": "Q4_1",
    "context": 4096,
    "slots": 2,
    "state": "up",
    "note": "",
    "measured": {"prefill_tokens_per_s": {"909": 249.0, "98": 344.2}, "decode_tokens_per_s": 80.4},
}
DOWN = {"id": "vllm", "endpoint": "vllm", "model": None, "state": "down", "note": "connection refused"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_text() -> None:
    assert styled("x", "bold", io.StringIO()) == "x"


def test_a_terminal_gets_colour_unless_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert styled("x", "bold", Terminal()) == "\x1b[1mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("x", "bold", Terminal()) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert styled("x", "bold", Terminal()) == "x"


def test_columns_are_as_wide_as_they_need_to_be_and_numbers_stand_to_the_right() -> None:
    assert table(("A", "COUNT"), [("long name", 5), ("b", None)]).splitlines() == [
        "A          COUNT",
        "long name      5",
        "b              -",
    ]


def test_what_was_found_stands_on_one_line_each() -> None:
    head, first, second = found_table([INT4, DOWN]).splitlines()
    assert head.split() == ["ENGINE", "VERSION", "MODEL", "PRECISION", "CONTEXT", "SLOTS", "STATE", "DEPLOYMENT"]
    assert first.split() == ["llama.cpp", "b9549", "SmolLM2", "int4", "Q4_1", "4096", "2", "up", "llamacpp-8080"]
    assert "down: connection refused" in second


def test_speeds_stand_under_their_model_by_prompt_length() -> None:
    assert "up, stable" in speed_tables([{**INT4, "stable": True}])
    judged = {**INT4, "quality": "passed", "predictions": {"held": 0.81, "outcomes": 120, "spread": 0.1}}
    assert "passed" in speed_tables([judged])
    assert "81% of 120" in speed_tables([judged])
    outdated = {**judged, "stable": True, "predictions": {**judged["predictions"], "outdated": "16 of 20"}}
    assert "up, stable, to be measured again" in speed_tables([outdated])
    text = speed_tables([INT4, DOWN])
    assert "SmolLM2\n" in text
    assert "344 at 98, 249 at 909" in text
    assert "80.4" in text
    assert "(no model yet)" in text


def test_an_error_says_what_to_do_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    problem = {"where": "a.yaml:3: x", "what": "is not a setting", "fix": "Did you mean `y`?"}
    report(UserError("cannot be used", fix="Mend it.", problems=[problem]), as_json=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: cannot be used\n  a.yaml:3: x is not a setting\n      Did you mean `y`?\n  Mend it.\n" in err


def test_an_error_in_json_is_an_object_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    report(UserError("cannot be used", fix="Mend it."), as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "error": {"message": "cannot be used", "fix": "Mend it.", "problems": []}
    }
