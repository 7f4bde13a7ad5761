"""How often a prompt is continued: what agents and conversations do, and single questions do not."""

from __future__ import annotations

from collections import OrderedDict

_MOST_CALLERS = 4096
_WEIGHT = 0.1
_MOST = 8.0


class Turns:
    """Per model and caller, how many requests will probably begin with what one has just sent.

    Learned from the share of requests that began with something sent before: with a share of s there are s / (1 − s)
    further ones in the mean. Remembers 4,096 pairs at most.
    """

    def __init__(self) -> None:
        self._shares: OrderedDict[tuple[str, str], float] = OrderedDict()

    def further(self, model: str, caller: str) -> float:
        """Return how many further requests will probably begin with a prompt; 8 at most, 0 for who is not known."""
        share = self._shares.get((model, caller), 0.0)
        return min(_MOST, share / (1.0 - share)) if share < 1.0 else _MOST

    def learn(self, model: str, caller: str, *, continues: bool) -> None:
        """Take one request: whether most of its prompt had been sent before."""
        share = self._shares.get((model, caller), 0.0)
        self._shares[model, caller] = share + _WEIGHT * (continues - share)
        self._shares.move_to_end((model, caller))
        if len(self._shares) > _MOST_CALLERS:
            self._shares.popitem(last=False)
