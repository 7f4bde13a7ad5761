from __future__ import annotations

from pathlib import Path

import pytest

from adapters.registry import kinds
from gateway.docs import configuration_page
from gateway.settings import EngineKind, Settings
from gateway.settings_errors import paths
from gateway.settings_source import parse_yaml

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_in_the_repository_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == configuration_page(), (
        "run `python -m gateway.docs docs/configuration.md`"
    )


@pytest.mark.parametrize("path", list(paths(Settings)))
def test_every_setting_is_on_the_page_with_its_meaning(path: str) -> None:
    page = configuration_page()
    group, _, name = path.rpartition(".")
    section = page.split(f"\n## `{group}`\n", 1)[1].split("\n## ", 1)[0] if group else page
    row = next((line for line in section.splitlines() if line.startswith(f"| `{name}` |")), None)
    if row is None:
        assert f"\n## `{path}" in page
    else:
        assert len(row.split("|")[4].strip()) > 5


def test_the_example_on_the_page_can_be_used() -> None:
    example = configuration_page().split("```yaml\n")[1].split("```")[0]
    settings = Settings(**parse_yaml(example, PAGE).values)
    assert [engine.name for engine in settings.engines] == ["workstation", "own"]


def test_every_kind_that_can_be_configured_has_an_adapter_and_every_adapter_can_be_configured() -> None:
    assert {kind.value for kind in EngineKind} == set(kinds())
