"""Sends one request to the gateway and keeps what came back, beside what had been predicted.

By Paceline's own transport: a library's client takes some milliseconds of the same cores before it shows the first
token, a tenth of what a short prompt takes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.errors import EngineError
from adapters.sse import EventSplitter, event_data, split_events
from adapters.transport import Response, Transport, TransportLimits
from benchmarks.routing_real.others import DISTURBED, Others
from benchmarks.routing_real.shapes import Shape

LIMIT_S = 120.0
Messages = list[dict[str, str]]

_TTFT = re.compile(r"ttft;dur=([\d.]+)")


@dataclass(slots=True)
class Sent:
    """One answer. Times in seconds, as the client saw them; predictions are those of the response's headers.

    ``others_cores`` is what programs beside this benchmark used meanwhile.
    """

    shape: Shape
    deployment: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: float = 0.0
    total_s: float = 0.0
    predicted_ttft_s: float = 0.0
    predicted_total_s: float = 0.0
    reason: str = ""
    text: str = ""
    error: str = ""
    others_cores: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether other programs used the cores meanwhile."""
        return self.others_cores > DISTURBED


class Client:
    """Asks one gateway. ``model`` has a selector that admits every precision."""

    def __init__(self, url: str, model: str, others: Others) -> None:
        self._model = model
        self._others = others
        limits = TransportLimits(header_timeout_s=LIMIT_S, read_timeout_s=LIMIT_S)
        self._transport = Transport(url, limits=limits)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def send(
        self, shape: Shape, messages: Messages, *, pinned: str = "", on_token: Callable[[], object] = lambda: None
    ) -> Sent:
        """Send a request and read its answer to the end; what goes wrong stands in ``error``.

        ``on_token`` is called at each piece of a streamed answer.
        """
        sent = Sent(shape)
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": shape.output_tokens,
            "ignore_eos": True,  # the wanted length, on every engine: predictions are of time, not of a model's mood
            "temperature": 0,
            "stream": shape.stream,
        }
        if shape.stream:
            body["stream_options"] = {"include_usage": True}
        headers = [("Content-Type", "application/json")]
        if pinned:
            headers.append(("x-paceline-deployment", pinned))
        before = self._others.read()
        begun = time.perf_counter()
        try:
            response = await self._transport.request(
                "POST", "/v1/chat/completions", body=json.dumps(body).encode(), headers=headers
            )
            try:
                if response.status != 200:
                    sent.error = (await response.read()).decode(errors="replace")[:300]
                    return sent
                _read_headers(sent, response.headers)
                if shape.stream:
                    await _read_events(sent, response, begun, on_token)
                else:
                    _read_answer(sent, json.loads(await response.read()))
            finally:
                response.close()
        except (EngineError, ValueError) as error:
            sent.error = f"{type(error).__name__}: {error}"
        sent.total_s = time.perf_counter() - begun
        sent.others_cores = self._others.cores_since(before)
        return sent


def _read_headers(sent: Sent, headers: Mapping[str, str]) -> None:
    sent.deployment = headers["x-paceline-deployment"]
    sent.reason = headers["x-paceline-reason"]
    sent.predicted_ttft_s = float(headers.get("x-paceline-predicted-ttft-ms", 0)) / 1000
    sent.predicted_total_s = float(headers.get("x-paceline-predicted-total-ms", 0)) / 1000
    if not sent.shape.stream and (found := _TTFT.search(headers["server-timing"])):
        sent.ttft_s = float(found[1]) / 1000


async def _read_events(sent: Sent, response: Response, begun: float, on_token: Callable[[], object]) -> None:
    splitter = EventSplitter()
    while piece := await response.read_some():
        for event in split_events(splitter.feed(piece)):
            data = event_data(event)
            if data is not None and data.startswith(b"{"):
                _read_event(sent, json.loads(data), begun, on_token)


def _read_event(sent: Sent, event: dict[str, Any], begun: float, on_token: Callable[[], object]) -> None:
    if event.get("error"):
        raise ValueError(event["error"]["message"])
    if event.get("choices") and (text := event["choices"][0]["delta"].get("content")):
        sent.ttft_s = sent.ttft_s or time.perf_counter() - begun
        sent.text += text
        on_token()
    _read_usage(sent, event.get("usage"))


def _read_answer(sent: Sent, answer: dict[str, Any]) -> None:
    sent.text = answer["choices"][0]["message"]["content"] or ""
    _read_usage(sent, answer.get("usage"))


def _read_usage(sent: Sent, usage: dict[str, Any] | None) -> None:
    if usage:
        sent.prompt_tokens = usage["prompt_tokens"]
        sent.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
