"""The form of a tool call: written into the text by every model, and as a real call where a deployment knows tools."""

from __future__ import annotations

from typing import Any

from measure.quality.checks import Calls, Json
from measure.quality.prompts import Prompt, user

_TEXT = {"type": "string", "minLength": 1}


def _arguments(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _written(id_: str, function: str, question: str, name: str, **arguments: object) -> Prompt:
    """A call in JSON that the model writes into its text, after one example."""
    turns = (
        f'Answer only with a call of a function, as JSON: {{"name": ..., "arguments": {{...}}}}.\n'
        f"Functions: add(a: number, b: number); {function}.\nQuestion: What is 1 + 2?",
        '{"name": "add", "arguments": {"a": 1, "b": 2}}',
        f"Question: {question}",
    )
    schema = _arguments(name={"const": name}, arguments=_arguments(**arguments))
    return Prompt(f"tools/{id_}", "tools", user(*turns), (Json(schema),), 48)


def _real(id_: str, question: str, name: str, description: str, given: dict[str, object], **wanted: object) -> Prompt:
    """A call of a tool in OpenAI's form; ``given`` are its parameters, ``wanted`` what they have to be."""
    parameters = _arguments(**given)
    tool = {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
    return Prompt(f"tools/{id_}", "tools", user(question), (Calls(name, _arguments(**wanted)),), 64, (tool,))


TOOLS = (
    _written("weather", "weather(city: string)", "How is the weather in Turku?", "weather", city={"const": "Turku"}),
    _written("add", "weather(city: string)", "What is 20 + 22?", "add", a={"const": 20}, b={"const": 22}),
    _written("search", "search(query: string)", "Find articles about solar panels.", "search", query=_TEXT),
    _written(
        "light",
        "light(room: string, on: boolean)",
        "Switch the light in the kitchen on.",
        "light",
        room=_TEXT,
        on={"const": True},
    ),
    _written("timer", "timer(minutes: number)", "Set a timer of 25 minutes.", "timer", minutes={"const": 25}),
    _written(
        "mail",
        "mail(to: string, subject: string)",
        "Write to anna@example.org about the invoice.",
        "mail",
        to={"const": "anna@example.org"},
        subject=_TEXT,
    ),
    _real(
        "real-weather",
        "How is the weather in Bergen?",
        "get_weather",
        "Current weather of a city",
        {"city": {"type": "string"}},
        city={"pattern": "(?i)bergen"},
    ),
    _real(
        "real-timer",
        "Set a timer of 10 minutes.",
        "set_timer",
        "Start a timer",
        {"minutes": {"type": "integer"}},
        minutes={"const": 10},
    ),
    _real(
        "real-search",
        "Search the web for the height of Mont Blanc.",
        "search",
        "Search the web",
        {"query": {"type": "string"}},
        query={"pattern": "(?i)mont blanc"},
    ),
)
