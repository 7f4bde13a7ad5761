"""Checks of the engines: reachable, their versions, the precision that they really run, their context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from adapters.base import EngineDescription, ModelDescription
from adapters.launch import LaunchError, command
from gateway.checks.finding import Finding, fix, note, ok, warn
from gateway.launching import launch_spec
from gateway.settings import EngineKind, EngineSettings, LaunchSettings, Settings
from policies.types import Health, Precision

SMALL_CONTEXT = 4096
"""Tokens; chats with tools or documents are regularly longer."""


class Watched(Protocol):
    """What is looked at of an engine; ``gateway.engine.Engine`` is one."""

    name: str
    health: Health
    note: str
    description: EngineDescription | None


def check_engines(settings: Settings, engines: Iterable[Watched]) -> Iterator[Finding]:
    """Look at the engines that are configured or were found, and at those that are to be started."""
    configured = {engine.name: engine for engine in settings.engines}
    found = list(engines)
    for engine in found:
        yield from check_running(engine, configured.get(engine.name))
    for settings_of in settings.engines:
        if settings_of.launch is not None:
            yield from check_launch(settings_of, settings_of.launch, settings.data_dir)
        if settings_of.kind is EngineKind.HOSTED and find_spec("litellm") is None:
            todo = "`pip install 'paceline[hosted]'`."
            yield fix("engines", f"{settings_of.name} is a hosted API, and litellm is not installed", todo)
    if not found and not settings.engines:
        ports = ", ".join(map(str, settings.discovery.ports))
        looked = f"on 127.0.0.1, ports {ports}" if settings.discovers else "nowhere: discovery.enabled is false"
        yield fix("engines", f"no engine was found ({looked})", "Start one, or configure one under engines.")


def check_running(engine: Watched, configured: EngineSettings | None) -> Iterator[Finding]:
    """Look at one engine that runs, or should."""
    if engine.health is Health.LOADING:
        yield note("engines", f"{engine.name} is loading: {engine.note}")
        return
    description = engine.description
    if engine.health is Health.DOWN or description is None:
        todo = "Start it, or correct its url." if configured else "It stopped while it was looked at: start it again."
        yield fix("engines", f"{engine.name} cannot be used: {engine.note}", todo)
        return
    yield ok("engines", f"{engine.name} is {description.label} {description.version} with {_counted(description)}")
    for model in description.models:
        yield from check_precision(engine.name, model, configured)
        yield from check_context(engine.name, description, model)


def check_precision(engine: str, model: ModelDescription, configured: EngineSettings | None) -> Iterator[Finding]:
    """Compare the precision that is configured with the one that really runs."""
    said = configured.precision if configured else None
    where = f"{engine}: {model.engine_model}"
    if model.precision is Precision.UNKNOWN:
        todo = (
            "Say it in engines[].precision, or name its folder in model_dir; until then it serves only when asked for."
        )
        yield warn("precision", f"{where} does not say in which precision it runs", todo)
    elif said not in (None, Precision.UNKNOWN, model.precision):
        todo = "Correct engines[].precision, or take it out: the engine's own word is used."
        yield fix("precision", f"{where} is configured as {said} and runs {_precision(model)}", todo)
    else:
        yield ok("precision", f"{where} runs {_precision(model)} (says {model.precision_from})")


def check_context(engine: str, description: EngineDescription, model: ModelDescription) -> Iterator[Finding]:
    """Is there room for ordinary prompts?"""
    where = f"{engine}: {model.engine_model}"
    if model.context is None:
        yield note("context", f"{where} does not say how long a prompt may be")
    elif model.context < SMALL_CONTEXT:
        todo = _MORE_CONTEXT.get(description.kind, "Start it with a larger one.")
        yield warn("context", f"{where} takes {model.context} tokens a request: longer prompts are refused", todo)
    else:
        yield ok("context", f"{where} takes {model.context} tokens a request")


def check_launch(engine: EngineSettings, launch: LaunchSettings, data_dir: Path) -> Iterator[Finding]:
    """Can an engine be started: is its program there, and its model?"""
    try:
        command(launch_spec(engine, launch, data_dir), launch.port or 0)
    except LaunchError as error:
        todo = f"Correct engines[].launch of {engine.name} (relative paths start at {Path.cwd()})."
        yield fix("engines", f"{engine.name} cannot be started: {error}", todo)
    else:
        yield ok("engines", f"{engine.name} can be started: {launch.engine} {launch.model}".rstrip())


def _counted(description: EngineDescription) -> str:
    count = len(description.models)
    return "1 model" if count == 1 else f"{count} models"


def _precision(model: ModelDescription) -> str:
    return f"{model.precision} {model.scheme}".rstrip()


_MORE_CONTEXT = {
    "builtin": "Start it with a larger --context.",
    "llamacpp": "Start llama-server with a larger --ctx-size: it is divided by --parallel.",
    "vllm": "Start it with a larger --max-model-len.",
    "ollama": "Set OLLAMA_CONTEXT_LENGTH, or num_ctx in the model's Modelfile.",
    "lmstudio": "Load the model with a larger context length.",
}
