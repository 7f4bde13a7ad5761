"""Which beginnings of prompts each deployment probably still has in its prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

_MOST_HASHES = 8192
_START_CAPACITY_TOKENS = 32768
_RECENT_MESSAGES = 8
"""So far back the end of an answer is looked for: where a conversation went on elsewhere meanwhile, blocks tell."""
_BLOCK = 0, 0


class PrefixMemory:
    """What prompts began with, per deployment, forgotten as its cache would forget it: the least recently used first.

    A block's hash stands for its block and all before it, so that a known one means that the prefix up to there was
    sent; a message's stands for the whole conversation up to its end. With the last message of a prompt goes what the
    engine held once it was answered, since a conversation goes on from there. A prompt's end is forgotten before its
    beginning. Bounded by the engine's own capacity and by 8,192 hashes (about half a million tokens) per deployment;
    ``keep`` drops deployments.
    """

    def __init__(self) -> None:
        self._known: dict[str, OrderedDict[int, tuple[int, int]]] = {}
        """By deployment and hash: the tokens of the prompt that ended there, and of its answer; none of a block."""

    def remember(
        self,
        deployment_id: str,
        prefix: Sequence[int],
        block_tokens: int,
        capacity_tokens: int | None = None,
        *,
        messages: Sequence[int] = (),
        prompt_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        """A prompt was sent and answered, with so many tokens, if known. ``capacity_tokens`` is what the engine's cache
        holds, context × slots, if known."""
        if not prefix and not messages:
            return
        known = self._known.setdefault(deployment_id, OrderedDict())
        if messages:
            known[messages[-1]] = prompt_tokens, output_tokens
            known.move_to_end(messages[-1])
        for block in reversed(prefix):
            known[block] = _BLOCK
            known.move_to_end(block)
        most = min(_MOST_HASHES, max(1, (capacity_tokens or _START_CAPACITY_TOKENS) // max(1, block_tokens)))
        while len(known) > most:
            known.popitem(last=False)

    def cached_tokens(
        self,
        deployment_id: str,
        prefix: Sequence[int],
        block_tokens: int,
        prompt_tokens: int = 0,
        *,
        messages: Sequence[int] = (),
    ) -> int:
        """Return how many leading tokens of a prompt of ``prompt_tokens`` the deployment probably holds."""
        known = self._known.get(deployment_id)
        return _held(known, prefix, block_tokens, prompt_tokens, _latest(messages)) if known else 0

    def holders(
        self, prefix: Sequence[int], block_tokens: int, prompt_tokens: int = 0, *, messages: Sequence[int] = ()
    ) -> dict[str, int]:
        """Return the leading tokens of a prompt that deployments probably hold, of those that hold any."""
        if not prefix and not messages:
            return {}
        latest = _latest(messages)
        return {
            id_: held
            for id_, known in self._known.items()
            if (held := _held(known, prefix, block_tokens, prompt_tokens, latest))
        }

    def keep(self, deployment_ids: Collection[str]) -> None:
        """All other deployments were stopped, unloaded or removed: their caches are empty."""
        for gone in self._known.keys() - set(deployment_ids):
            del self._known[gone]


def _latest(messages: Sequence[int]) -> Sequence[int]:
    return messages[: -_RECENT_MESSAGES - 1 : -1]


def _held(
    known: Mapping[int, tuple[int, int]],
    prefix: Sequence[int],
    block_tokens: int,
    prompt_tokens: int,
    latest: Sequence[int],
) -> int:
    blocks = 0
    if prefix and prefix[0] in known:
        blocks, beyond = 1, len(prefix) + 1
        while beyond - blocks > 1:
            middle = (blocks + beyond) // 2
            if prefix[middle - 1] in known:
                blocks = middle
            else:
                beyond = middle
    ended = 0
    for message in latest:
        if end := known.get(message):
            asked, answered = end
            # A longer answer does not stand in this prompt whole: that of a model that thinks, without its thoughts.
            ended = asked + answered if asked + answered < prompt_tokens else asked
            break
    return max(ended, blocks * block_tokens)
