"""Which blocks of the cache belong to whom. It holds no tensors: a block is a number.

A block that is full and computed is known by a digest of its tokens and of all before them, so that another sequence
with the same beginning shares it. Shared blocks are never written to: what a sequence writes lies behind its full ones.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from engine.request import Sequence


class BlockManager:
    """``blocks`` blocks of ``block_size`` positions each.

    A block is in one of three states: in use (its references are counted), kept (nobody uses it, its content is known
    and may be found again; the least recently used is given up first), or unused.
    """

    def __init__(self, blocks: int, block_size: int, prefix_cache: bool = True) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"{blocks} blocks of {block_size} positions hold nothing")
        self.blocks = blocks
        self.block_size = block_size
        self.asked = 0
        """Tokens of all that began, and how many of them were ``found`` in the prefix cache."""
        self.found = 0
        self._prefix_cache = prefix_cache
        self._references = [0] * blocks
        self._digests = [b""] * blocks  # empty for a block whose content nobody knows
        self._known: dict[bytes, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._unused = bytearray(b"\x01" * blocks)
        self._unused_count = blocks
        self._cursor = 0
        self._chains: dict[int, list[bytes]] = {}

    @property
    def free(self) -> int:
        """Blocks that can be had now: unused ones and kept ones."""
        return self._unused_count + len(self._kept)

    def covering(self, length: int) -> int:
        """Blocks that hold ``length`` positions."""
        return -(-length // self.block_size)

    def begin(self, sequence: Sequence, spare: int = 0) -> bool:
        """Gives a sequence without blocks the room for all its tokens, those found in the prefix cache first.

        Sets its ``blocks`` and ``computed``. The last token is computed in any case: its logits are wanted. False, and
        nothing is changed, when fewer than ``spare`` blocks would be left.
        """
        shared, chain = self._find(sequence)
        fresh = self.covering(len(sequence.tokens)) - len(shared)
        if fresh + spare > self.free - sum(not self._references[block] for block in shared):
            return False
        for block in shared:
            self._refer(block)
        sequence.blocks = shared
        self._chains[sequence.id] = chain
        self.asked += len(sequence.tokens)
        self._skip(sequence, len(shared) * self.block_size)
        return self.extend(sequence, len(sequence.tokens))

    def catch_up(self, sequence: Sequence) -> bytes | None:
        """Takes over what others have computed of the sequence's tokens since it began.

        Returns what tells the block that it computes next from others, None when that one is not shared: of two
        sequences with the same, one had better wait for the other.
        """
        chain = self._chains[sequence.id]
        while self._shares(sequence) and (index := len(chain)) < (len(sequence.tokens) - 1) // self.block_size:
            digest = self._digest(sequence, chain)
            block = self._known.get(digest)
            if block is None:
                return digest
            own, sequence.blocks[index] = sequence.blocks[index], block
            self._refer(block)
            self._drop(own)
            chain.append(digest)
            self._skip(sequence, len(chain) * self.block_size - sequence.computed)
        return None

    def extend(self, sequence: Sequence, length: int) -> bool:
        """Makes room for ``length`` positions; False, and nothing is changed, when there are too few blocks."""
        fresh = self.covering(length) - len(sequence.blocks)
        if fresh > self.free:
            return False
        limit = sequence.prompt_length + sequence.sampling.max_tokens
        for _ in range(fresh):
            after = sequence.blocks[-1] if sequence.blocks else None
            block = self._take(after, max(self.covering(limit) - len(sequence.blocks), 1))
            self._refer(block)
            sequence.blocks.append(block)
        return True

    def keep(self, sequence: Sequence) -> None:
        """Remembers the content of the sequence's full computed blocks, so that others find it."""
        chain = self._chains[sequence.id]
        while self._shares(sequence) and len(chain) < sequence.computed // self.block_size:
            block, digest = sequence.blocks[len(chain)], self._digest(sequence, chain)
            chain.append(digest)
            if self._known.setdefault(digest, block) == block:
                self._digests[block] = digest

    def release(self, sequence: Sequence) -> None:
        """Takes back the blocks of a sequence."""
        # The last is given up first: what lies before it is of use without it, not the other way round.
        for block in reversed(sequence.blocks):
            self._drop(block)
        sequence.blocks = []
        sequence.computed = 0
        del self._chains[sequence.id]

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError unless exactly the blocks of ``sequences`` are in use, and all else is in order."""
        used = [0] * self.blocks
        for sequence in sequences:
            assert len(set(sequence.blocks)) == len(sequence.blocks), "a sequence has a block twice"
            assert sequence.computed <= len(sequence.blocks) * self.block_size, "computed positions without a block"
            for index, block in enumerate(sequence.blocks):
                used[block] += 1
                full = (index + 1) * self.block_size <= sequence.computed
                assert full or self._references[block] == 1, "a block that is still written to is shared"
        assert used == self._references, "references differ from use"
        for block in range(self.blocks):
            states = (used[block] > 0) + (block in self._kept) + self._unused[block]
            assert states == 1, f"block {block} is in {states} states"
            digest = self._digests[block]
            assert not digest or self._known[digest] == block, "a digest leads to another block"
            assert block not in self._kept or digest, "a block is kept that nobody can find"
        assert len(self._known) == sum(map(bool, self._digests)), "a digest leads nowhere"
        assert self._unused_count == sum(self._unused), "unused blocks are counted wrongly"

    def _shares(self, sequence: Sequence) -> bool:
        return self._prefix_cache and not sequence.pools  # an embedding needs the hidden states of all its positions

    def _skip(self, sequence: Sequence, tokens: int) -> None:
        sequence.computed += tokens
        self.found += tokens
        if not sequence.preemptions:
            sequence.cached += tokens

    def _find(self, sequence: Sequence) -> tuple[list[int], list[bytes]]:
        blocks: list[int] = []
        chain: list[bytes] = []
        most = (len(sequence.tokens) - 1) // self.block_size if self._shares(sequence) else 0
        while len(chain) < most and (block := self._known.get(digest := self._digest(sequence, chain))) is not None:
            chain.append(digest)
            blocks.append(block)
        return blocks, chain

    def _digest(self, sequence: Sequence, chain: list[bytes]) -> bytes:
        """Of the block behind the chain's."""
        # Cryptographic: with a guessable one, a prompt could be made that finds another's cache.
        index = len(chain)
        tokens = sequence.tokens[index * self.block_size : (index + 1) * self.block_size]
        return blake2b(b"".join(chain[-1:]) + array("q", tokens).tobytes(), digest_size=16).digest()

    def _refer(self, block: int) -> None:
        self._kept.pop(block, None)
        self._references[block] += 1

    def _drop(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block] == 0 and self._digests[block]:
            self._kept[block] = None
        elif self._references[block] == 0:
            self._vacate(block)

    def _take(self, after: int | None, room: int) -> int:
        # A sequence whose blocks lie one behind the other is read without a copy on a CPU. So the next block is best,
        # and one that begins does so where it has room; for that, a few more of the oldest are given up.
        if after is None:
            few = min(room // 2, len(self._kept) // 16)
            for _ in range(4):
                self._give_up(few if self._gap(room) < 0 else 0)
        if not self._unused_count:
            self._give_up(1)
        if after is not None and after + 1 < self.blocks and self._unused[after + 1]:
            block = after + 1
        else:
            while (block := self._gap(room)) < 0:
                room //= 2
            self._cursor = block + room
        self._unused[block] = 0
        self._unused_count -= 1
        return block

    def _give_up(self, count: int) -> None:
        for _ in range(count):
            block, _ = self._kept.popitem(last=False)
            del self._known[self._digests[block]]
            self._digests[block] = b""
            self._vacate(block)

    def _vacate(self, block: int) -> None:
        self._unused[block] = 1
        self._unused_count += 1

    def _gap(self, room: int) -> int:
        gap = b"\x01" * room
        block = self._unused.find(gap, self._cursor)
        return block if block >= 0 else self._unused.find(gap)
