"""A dozen requests of different shapes, sent by the official OpenAI client, alone and several at once."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import openai
from local_engines import MODEL
from rich.console import Console

SHORT = "Tell me a long story about a lighthouse and its keeper."
LONG = (
    "The harbour town lies between two hills. In spring the fishermen mend their nets on the quay, and the children "
    "count the boats that come home. The baker opens at five, the school at eight, the library only on Wednesdays. "
    "A narrow railway follows the coast; it was built for slate and now carries hikers. Engineers say that the old "
    "viaduct needs eleven new arches, and that each of them takes a month. "
)
LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What to ask. ``repeats`` is how often the long text stands in the prompt; 0 asks the short question."""

    label: str
    selector: str = ""
    repeats: int = 0
    max_tokens: int = 24
    stream: bool = True


@dataclass(slots=True)
class Sent:
    """What came back. Times are seconds; predictions are those of the response's headers, where it had them."""

    shape: Shape
    number: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    deployment: str = ""
    precision: str = ""
    reason: str = ""
    cache: str = ""
    ttft_s: float | None = None
    total_s: float = 0.0
    predicted_ttft_s: float | None = None
    predicted_total_s: float | None = None
    error: str = ""
    together: bool = False


ONE_BY_ONE = (
    Shape("short, few tokens"),
    Shape("short, many tokens", max_tokens=96),
    Shape("long, few tokens", repeats=5, max_tokens=8),
    Shape("long, many tokens", repeats=5, max_tokens=64),
    Shape("short, not streamed", stream=False),
    Shape("long at int4", "@int4", repeats=4),
    Shape("short at fp16", "@fp16", max_tokens=48),
    Shape("long at int8 or better", "@int8+", repeats=4, max_tokens=16),
    Shape("many tokens at int8 or better", "@int8+", max_tokens=96),
    Shape("llama.cpp, not streamed", "@llamacpp", repeats=2, stream=False),
)
AT_ONCE = tuple(Shape(f"at once, {i} of 4", "@int4+", repeats=1, max_tokens=32) for i in range(1, 5))


async def send_all(url: str, deployments: Iterable[dict[str, Any]], console: Console) -> list[Sent]:
    """Send them all: the first ones alone, the last ones together; one more for each further kind of engine."""
    kinds = {entry["engine"] for entry in deployments} - {"llamacpp"}
    further = tuple(Shape(f"short at {kind}", f"@{kind}", max_tokens=24) for kind in sorted(kinds))
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=LIMIT_S) as client:
        sent = []
        for number, shape in enumerate((*ONE_BY_ONE, *further)):
            with console.status(f"Sending: {shape.label} {shape.selector}"):
                sent.append(await _send(client, shape, number))
        with console.status("Sending four at once"):
            together = await asyncio.gather(*(_send(client, shape, 90 + i) for i, shape in enumerate(AT_ONCE)))
        for each in together:
            each.together = True
        return [*sent, *together]


async def send_again(url: str, before: Sent) -> Sent:
    """Send a request once more, in the other form: streamed if it was not."""
    shape = replace(before.shape, stream=not before.shape.stream)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=LIMIT_S) as client:
        await client.models.list()  # the connection is there: what is timed is the answer
        return await _send(client, shape, before.number)


async def _send(client: openai.AsyncOpenAI, shape: Shape, number: int) -> Sent:
    sent = Sent(shape, number)
    # Numbered at the front, so that no engine can answer from the prefix cache of an earlier one.
    text = f"Request {number}. {LONG * shape.repeats}{SHORT}"
    begun = time.monotonic()
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if shape.stream else {}
    try:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL + shape.selector,
            messages=[{"role": "user", "content": text}],
            max_tokens=shape.max_tokens,
            temperature=0,
            stream=shape.stream,
            **options,
        )
        _read_headers(sent, raw.headers)
        answer: Any = raw.parse()
        if shape.stream:
            async for chunk in answer:
                if sent.ttft_s is None and chunk.choices and chunk.choices[0].delta.content:
                    sent.ttft_s = time.monotonic() - begun
                _read_usage(sent, chunk.usage)
        else:
            _read_usage(sent, answer.usage)
    except openai.APIError as error:
        sent.error = str(error)
    sent.total_s = time.monotonic() - begun
    return sent


def _read_usage(sent: Sent, usage: Any) -> None:
    if usage is not None:
        sent.prompt_tokens, sent.output_tokens = usage.prompt_tokens, usage.completion_tokens


def _read_headers(sent: Sent, headers: Any) -> None:
    sent.deployment = headers["x-paceline-deployment"]
    sent.precision = headers["x-paceline-precision"]
    sent.reason = headers["x-paceline-reason"]
    sent.cache = headers["x-paceline-cache"]
    if "x-paceline-predicted-total-ms" in headers:
        sent.predicted_ttft_s = float(headers["x-paceline-predicted-ttft-ms"]) / 1000
        sent.predicted_total_s = float(headers["x-paceline-predicted-total-ms"]) / 1000
    if not sent.shape.stream and (found := re.search(r"ttft;dur=([\d.]+)", headers["server-timing"])):
        sent.ttft_s = float(found[1]) / 1000
