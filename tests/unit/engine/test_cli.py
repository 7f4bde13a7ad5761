"""The engine's command line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import engine
from engine.cli import parser
from engine.options import Options


def options(*words: str) -> Options:
    return Options(**vars(parser().parse_args(["--model", "m", *words])))


def test_a_model_is_enough() -> None:
    found = options()
    assert found == Options(Path("m"))
    assert (found.host, found.precision, found.prefix_cache) == ("127.0.0.1", "auto", True)


def test_every_option_is_taken() -> None:
    found = options("--precision", "int8", "--context", "512", "--max-sequences", "2", "--no-prefix-cache")
    assert (found.precision, found.context, found.max_sequences, found.prefix_cache) == ("int8", 512, 2, False)
    assert options("--served-name", "s", "--draft-model", "d").draft_model == Path("d")
    assert (options().ranks, options("--tensor-parallel", "2").ranks) == (1, 2)


@pytest.mark.parametrize(
    "words",
    [
        ("--port", "70000"),
        ("--context", "0"),
        ("--precision", "int3"),
        ("--threads", "x"),
        ("--tensor-parallel", "0"),
        ("--tensor-parallel", "two"),
    ],
)
def test_a_value_that_makes_no_sense_is_told_at_once(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        options(*words)
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert engine.__version__ == project["version"]
