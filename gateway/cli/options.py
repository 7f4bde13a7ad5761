"""Options that several commands have, and the settings that they lead to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.output import UserError

if TYPE_CHECKING:
    from gateway.settings import Settings

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Configuration. Left out: paceline.yaml here, if there is one."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[
    str, typer.Option("--url", metavar="URL", help="Address of a running Paceline. Left out: the configured one.")
]


def settings_from(config: Path | None) -> Settings:
    """Read the settings. Raises ``UserError`` with every problem in them."""
    from gateway.settings import SettingsError, load_settings

    try:
        return load_settings(config)
    except SettingsError as error:
        raise unusable(error) from None


def unusable(error: ValueError) -> UserError:
    """Return a ``SettingsError`` as an error for the user."""
    from gateway.settings import SettingsError

    assert isinstance(error, SettingsError)
    problems = [{"where": problem.where, "what": problem.what, "fix": problem.fix} for problem in error.problems]
    return UserError("this configuration cannot be used", problems=problems)


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turn what a user can put right, in the block, into a ``UserError``."""
    from gateway.errors import ApiError
    from gateway.settings import SettingsError

    try:
        yield
    except ApiError as error:
        raise UserError(error.message) from None
    except SettingsError as error:
        raise unusable(error) from None
