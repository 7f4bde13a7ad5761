"""What every group of settings has in common, and the types that several of them use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""A name that fits into headers, metrics and `NAME@SELECTOR`."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path in which `~` is the home folder; a relative one starts at the working directory."""


class Group(BaseModel):
    """A group of settings: frozen, no unknown keys. A value that was refused is never shown by pydantic itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)
