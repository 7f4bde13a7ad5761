"""Which leading blocks of prompts each deployment probably still has in its prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

_MOST_BLOCKS = 8192
_START_CAPACITY_TOKENS = 32768


class PrefixMemory:
    """Block hashes per deployment, forgotten as its cache would forget them: the least recently used first.

    Each hash stands for its block and all before it, so that a hash that is known means that the prefix up to there was
    sent. With a prompt's last block stands what the engine held once it was answered, since a conversation goes on from
    there. A prompt's later blocks are forgotten before its earlier ones. Bounded by the engine's own capacity and by
    8,192 blocks (about half a million tokens) per deployment; ``keep`` drops deployments.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, OrderedDict[int, int]] = {}
        """By deployment and block: the tokens of a prompt that ended there and of its answer, 0 when none did."""

    def remember(
        self,
        deployment_id: str,
        prefix: Sequence[int],
        block_tokens: int,
        capacity_tokens: int | None = None,
        *,
        whole_tokens: int = 0,
    ) -> None:
        """A prompt was sent and answered: ``whole_tokens`` are both together, if known. ``capacity_tokens`` is what
        the engine's cache holds, context × slots, if known."""
        if not prefix:
            return
        blocks = self._blocks.setdefault(deployment_id, OrderedDict())
        for block in reversed(prefix):
            blocks.setdefault(block, 0)
            blocks.move_to_end(block)
        blocks[prefix[-1]] = whole_tokens
        most = min(_MOST_BLOCKS, max(1, (capacity_tokens or _START_CAPACITY_TOKENS) // max(1, block_tokens)))
        while len(blocks) > most:
            blocks.popitem(last=False)

    def cached_tokens(
        self, deployment_id: str, prefix: Sequence[int], block_tokens: int, prompt_tokens: int = 0
    ) -> int:
        """Return how many leading tokens of a prompt the deployment probably holds.

        A prompt that goes beyond the end of one that was answered, with ``prompt_tokens`` for question and answer and
        more, continues it.
        """
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
        whole = blocks[prefix[known]]
        return max(whole if whole < prompt_tokens else 0, (known + 1) * block_tokens)

    def holders(self, prefix: Sequence[int], block_tokens: int, prompt_tokens: int = 0) -> dict[str, int]:
        """Return the leading tokens of a prompt that deployments probably hold, of those that hold any."""
        if not prefix:
            return {}
        first = prefix[0]
        holding = [id_ for id_, blocks in self._blocks.items() if first in blocks]
        return {id_: self.cached_tokens(id_, prefix, block_tokens, prompt_tokens) for id_ in holding}

    def keep(self, deployment_ids: Collection[str]) -> None:
        """All other deployments were stopped, unloaded or removed: their caches are empty."""
        for gone in self._blocks.keys() - set(deployment_ids):
            del self._blocks[gone]
