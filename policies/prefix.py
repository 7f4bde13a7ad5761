"""Which leading blocks of prompts each deployment probably still has in its prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

_MOST_BLOCKS = 8192
_START_CAPACITY_TOKENS = 32768


class PrefixMemory:
    """Block hashes per deployment, forgotten as its cache would forget them: the least recently used first.

    Each hash stands for its block and all before it, so that a hash that is known means that the prefix up to there was
    sent. A prompt's later blocks are forgotten before its earlier ones. Bounded by the engine's own capacity and by
    8,192 blocks (about a million tokens) per deployment; ``keep`` drops deployments.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, OrderedDict[int, None]] = {}

    def remember(
        self,
        deployment_id: str,
        prefix: Sequence[int],
        block_tokens: int,
        capacity_tokens: int | None = None,
    ) -> None:
        """A prompt was sent. ``capacity_tokens`` is what the engine's cache holds, context × slots, if known."""
        if not prefix:
            return
        blocks = self._blocks.setdefault(deployment_id, OrderedDict())
        for block in reversed(prefix):
            blocks[block] = None
            blocks.move_to_end(block)
        most = min(_MOST_BLOCKS, max(1, (capacity_tokens or _START_CAPACITY_TOKENS) // max(1, block_tokens)))
        while len(blocks) > most:
            blocks.popitem(last=False)

    def cached_tokens(self, deployment_id: str, prefix: Sequence[int], block_tokens: int) -> int:
        """Return how many leading tokens of a prompt the deployment probably holds."""
        blocks = self._blocks.get(deployment_id)
        if not blocks or not prefix or prefix[0] not in blocks:
            return 0
        known, unknown = 0, len(prefix)
        while unknown - known > 1:
            middle = (known + unknown) // 2
            if prefix[middle] in blocks:
                known = middle
            else:
                unknown = middle
        return (known + 1) * block_tokens

    def holders(self, prefix: Sequence[int], block_tokens: int) -> dict[str, int]:
        """Return the leading tokens of a prompt that deployments probably hold, of those that hold any."""
        if not prefix:
            return {}
        first = prefix[0]
        holding = [id_ for id_, blocks in self._blocks.items() if first in blocks]
        return {id_: self.cached_tokens(id_, prefix, block_tokens) for id_ in holding}

    def keep(self, deployment_ids: Collection[str]) -> None:
        """All other deployments were stopped, unloaded or removed: their caches are empty."""
        for gone in self._blocks.keys() - set(deployment_ids):
            del self._blocks[gone]
