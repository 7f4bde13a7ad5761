from __future__ import annotations

from pathlib import Path

import pytest

from adapters.base import EngineDescription, ModelDescription
from gateway.draft import RunningEngine, draft
from gateway.settings import Settings
from gateway.settings_source import parse_yaml
from policies.types import Precision


def written(name: str, model: ModelDescription) -> tuple[str, Settings]:
    description = EngineDescription("vllm", "vLLM", "0.32.0", (model,))
    text = draft([RunningEngine(name, "http://127.0.0.1:8000", description)])
    return text, Settings(**parse_yaml(text, Path("paceline.yaml")).values)


@pytest.mark.parametrize(
    "own", ["Qwen/Qwen3-8B", "qwen3:8b", "1e3", "no", "a: b", "- x", "#1", "'", '"', "ü", "{x}", ""]
)
def test_whatever_a_model_is_called_the_draft_says_the_same(own: str) -> None:
    _, settings = written("near", ModelDescription(own))
    assert list(settings.engines[0].models) == [own]


def test_what_is_known_of_a_model_stands_beside_it() -> None:
    text, _ = written("near", ModelDescription("m", Precision.INT4, "AWQ", context=2048, slots=4))
    assert "#   m: int4 AWQ, context 2048, 4 slots\n" in text
    assert "# precision:" not in text


def test_a_precision_that_nobody_knows_is_left_to_be_filled_in() -> None:
    text, _ = written("near", ModelDescription("m"))
    assert "# precision: bf16" in text


def test_the_examples_in_comments_can_be_used_when_they_are_uncommented() -> None:
    text = draft([])
    example = text[text.index("# engines:") :].split("\n\n")[0].replace("# ", "", 1).replace("\n# ", "\n")
    settings = Settings(**parse_yaml(example, Path("paceline.yaml")).values)
    assert [engine.name for engine in settings.engines] == ["workstation", "own"]
