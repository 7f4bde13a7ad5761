"""Exact prompt lengths where an estimate is not enough, near the edge of a context: asked of the engine's tokeniser."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from adapters.base import Adapter, Call
from adapters.errors import EngineError
from gateway.incoming import Incoming
from policies.selector import selects
from policies.types import Deployment, RequestFacts

logger = logging.getLogger("paceline.counting")

NEAR = 0.5
"""A prompt whose estimate is at least this part of a context may turn out not to fit it: text can be twice as dense in
tokens as what the estimate was learned from. Beside what reading such a prompt takes, asking costs nothing."""
LIMIT_S = 0.5
"""How long a request waits for its count; without one the estimate stands."""
REST_S = 30.0
"""A tokeniser that failed, or took longer, is not asked again for so long."""
_MOST_KNOWN = 1024
_MOST_RESTING = 256

Askable = tuple[Deployment, Adapter]


class TokenCounts:
    """Counts prompts by asking engines, and remembers the last 1,024 by a digest of their request."""

    def __init__(self) -> None:
        self._edges: dict[str, float] = {}
        """Per model, the estimated length from which on its smallest context may be too small."""
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._resting: OrderedDict[str, float] = OrderedDict()

    def place(self, of_model: Mapping[str, Sequence[Deployment]]) -> None:
        """Take up which deployments there are."""
        self._edges = {
            model: min((NEAR * each.context for each in members if each.context), default=math.inf)
            for model, members in of_model.items()
        }

    def may_not_fit(self, facts: RequestFacts) -> bool:
        """Return whether a prompt is near a context of its model, or beyond one."""
        return facts.prompt_tokens >= self._edges.get(facts.model, math.inf)

    async def exact(self, facts: RequestFacts, incoming: Incoming, up: Iterable[Askable]) -> RequestFacts:
        """Return the facts with the prompt's exact length, as they are where nobody can tell in time.

        Of the model's deployments that are ``up``, those are asked whose context it may or may not fit. The first that
        knows is believed for all.
        """
        askable = [
            (deployment, adapter)
            for deployment, adapter in up
            if deployment.context
            and facts.prompt_tokens_least <= deployment.context <= facts.prompt_tokens / NEAR
            and selects(facts.pinned or facts.selector, deployment)
        ]
        if not askable or incoming.images:  # no tokeniser counts those
            return facts
        digest = _digest(facts.model, incoming)
        counted = self._known.get(digest)
        if counted is None:
            counted = await self._ask(incoming, askable)
            if counted is None:
                return facts
            self._known[digest] = counted
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(digest)
        return replace(facts, prompt_tokens=counted, prompt_tokens_least=counted, counted=True)

    async def _ask(self, incoming: Incoming, askable: Iterable[Askable]) -> int | None:
        clock = asyncio.get_running_loop().time
        end = clock() + LIMIT_S
        for deployment, adapter in askable:
            if self._resting.get(deployment.endpoint, 0.0) > clock():
                continue
            try:
                async with asyncio.timeout_at(end):
                    counted = await adapter.count_tokens(_call(incoming, deployment))
            except (EngineError, TimeoutError) as error:
                logger.debug("%s does not count: %s", deployment.id, error or "too slow")
                self._rest(deployment.endpoint, clock() + REST_S)
                continue
            if counted is not None:
                return counted
        return None

    def _rest(self, endpoint: str, until: float) -> None:
        self._resting[endpoint] = until
        self._resting.move_to_end(endpoint)
        if len(self._resting) > _MOST_RESTING:
            self._resting.popitem(last=False)


def _call(incoming: Incoming, deployment: Deployment) -> Call:
    return Call(
        operation=incoming.operation,
        body=incoming.body,
        model=incoming.model,
        engine_model=deployment.engine_model,
        stream=False,
        include_usage=False,
    )


def _digest(model: str, incoming: Incoming) -> bytes:
    """The same for requests that are the same in every field: templates may read any of them."""
    digest = hashlib.blake2b(f"{model}\n{incoming.operation}\n".encode(), digest_size=16)
    for name, value in incoming.body.fields.items():
        digest.update(b"%s\0%d\0" % (name.encode(), len(value)))
        digest.update(value)
    return digest.digest()
