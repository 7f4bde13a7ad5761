"""All settings, from `paceline.yaml` and from `PACELINE_*` variables; a variable comes before the file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from gateway.redaction import redact
from gateway.settings_base import UserPath
from gateway.settings_cache import CacheSettings
from gateway.settings_document import Document
from gateway.settings_engines import EngineKind, EngineSettings, HardwareSettings, LaunchKind, LaunchSettings
from gateway.settings_errors import Problem, SettingsError, absent_variables, explain, unknown_variables
from gateway.settings_experiments import ExperimentSettings
from gateway.settings_parts import (
    AuthSettings,
    DiscoverySettings,
    KeySettings,
    LimitSettings,
    LogFormat,
    LogLevel,
    LogSettings,
    ModelSettings,
    RoutingSettings,
    ServerSettings,
)
from gateway.settings_requests import RequestSettings
from gateway.settings_telemetry import TelemetrySettings
from measure.place import data_folder

__all__ = [
    "AuthSettings",
    "CacheSettings",
    "DiscoverySettings",
    "EngineKind",
    "EngineSettings",
    "HardwareSettings",
    "KeySettings",
    "LaunchKind",
    "LaunchSettings",
    "LimitSettings",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "ModelSettings",
    "RoutingSettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "load_settings",
]

ENV_PREFIX = "PACELINE_"
CONFIG_VARIABLE = "PACELINE_CONFIG"
DEFAULT_FILE = "paceline.yaml"
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW", re.IGNORECASE)


class Settings(BaseSettings):
    """The whole configuration. Frozen; without arguments, file and variables it is the one for a single machine."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    server: ServerSettings = Field(default=ServerSettings(), description="Where Paceline listens.")
    auth: AuthSettings = Field(default=AuthSettings(), description="Who may use it.")
    limits: LimitSettings = Field(default=LimitSettings(), description="How much is taken on at once.")
    engines: tuple[EngineSettings, ...] = Field(default=(), description="The engines behind it.")
    models: dict[str, ModelSettings] = Field(default={}, description="Settings per logical model name.")
    routing: RoutingSettings = Field(default=RoutingSettings(), description="What decides between deployments.")
    cache: CacheSettings = Field(default=CacheSettings(), description="Repeated prompts.")
    experiments: tuple[ExperimentSettings, ...] = Field(default=(), description="Arms of a model that are compared.")
    discovery: DiscoverySettings = Field(default=DiscoverySettings(), description="Engines found on this machine.")
    data_dir: UserPath = Field(
        default_factory=data_folder,
        description="Where speed records and engines' logs are kept. Left out: the user's data folder.",
        examples=["~/.local/share/paceline"],
    )
    log: LogSettings = Field(default=LogSettings(), description="What is written to standard error.")
    requests: RequestSettings = Field(default=RequestSettings(), description="The log of the last requests.")
    telemetry: TelemetrySettings = Field(default=TelemetrySettings(), description="Traces and metrics.")

    _path: Path | None = PrivateAttr(None)

    @property
    def path(self) -> Path | None:
        """The file that was read, if any."""
        return self._path

    @property
    def discovers(self) -> bool:
        """Whether engines are looked for on the usual ports."""
        return not self.engines if self.discovery.enabled is None else self.discovery.enabled

    def secrets(self) -> Iterator[str]:
        """Return every secret that the settings hold or lead to, so that it can be kept out of logs and answers."""
        for key in self.auth.keys:
            yield os.environ.get(key.env or "", "")
        yield from self.cache.secrets()
        for engine in self.engines:
            yield engine.key()
            if engine.launch is not None:
                yield from (value for name, value in engine.launch.env.items() if _SECRET_NAME.search(name))

    @field_validator("engines")
    @classmethod
    def _distinct_names(cls, engines: tuple[EngineSettings, ...]) -> tuple[EngineSettings, ...]:
        names = [engine.name for engine in engines]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"each engine needs its own name; more than once: {', '.join(twice)}")
        return engines

    @field_validator("experiments")
    @classmethod
    def _distinct_experiments(cls, experiments: tuple[ExperimentSettings, ...]) -> tuple[ExperimentSettings, ...]:
        for what, values in (("name", [e.name for e in experiments]), ("model", [e.model for e in experiments])):
            if twice := sorted({each for each in values if values.count(each) > 1}):
                raise ValueError(f"each experiment needs its own {what}; more than once: {', '.join(twice)}")
        return experiments

    @field_validator("models")
    @classmethod
    def _plain_names(cls, models: dict[str, ModelSettings]) -> dict[str, ModelSettings]:
        seen: dict[str, str] = {}
        for name, model in models.items():
            for spelling in (name, *model.aliases):
                if not spelling or "@" in spelling:
                    raise ValueError(f"a model's name has no '@', which starts a selector: {spelling!r}")
                if seen.setdefault(spelling, name) != name:
                    raise ValueError(f"{spelling!r} stands for both {seen[spelling]!r} and {name!r}")
        return models

    @model_validator(mode="after")
    def _open_to_browsers_needs_keys(self) -> Settings:
        if "*" in self.server.cors_origins and not self.auth.keys:
            raise ValueError(
                "server.cors_origins '*' without auth.keys lets every web page use this machine's models: "
                "name the origins, or add a key (`paceline key`)"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings


def find_settings_file() -> Path | None:
    """Return the file that is used when none is named: that of `PACELINE_CONFIG`, else `paceline.yaml` right here."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named).expanduser()
    default = Path(DEFAULT_FILE)
    return default if default.is_file() else None


def load_settings(path: Path | None = None) -> Settings:
    """Read the settings from ``path`` (or the file that ``find_settings_file`` finds) and from the environment.

    The secrets in them are hidden from then on (see ``gateway.redaction``).
    Raises ``SettingsError`` with every problem: where it is, what is wrong and what to write instead.
    """
    path = path or find_settings_file()
    document = _read(path) if path else Document()
    try:
        settings = Settings(**document.values)
    except ValidationError as error:
        raise SettingsError(explain(error, Settings, document)) from None
    except SourceError as error:
        raise SettingsError([_bad_json(error)]) from None
    if problems := unknown_variables(settings, os.environ) + absent_variables(settings, os.environ):
        raise SettingsError(problems)
    settings._path = path
    redact.learn(settings.secrets())
    return settings


def _read(path: Path) -> Document:
    from gateway.settings_source import read_yaml  # its parser is not imported where there is no file

    return read_yaml(path)


def _bad_json(error: SourceError) -> Problem:
    field = str(error).split('"')[1] if '"' in str(error) else ""
    variable = "$" + ENV_PREFIX + field.upper()
    return Problem(variable, "is not valid JSON", 'Lists and mappings are written as JSON, such as [{"name": "a"}].')
