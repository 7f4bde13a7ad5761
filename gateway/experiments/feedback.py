"""What callers think of answers, by the ids of requests that ended a while ago."""

from __future__ import annotations

from collections import OrderedDict

from gateway.experiments.assigned import Assigned

MOST_REMEMBERED = 10_000


class Feedback:
    """Remembers which arm answered the last requests, and whose they were."""

    def __init__(self) -> None:
        self._answered: OrderedDict[str, tuple[str, Assigned]] = OrderedDict()

    def remember(self, request_id: str, caller: str, assigned: Assigned) -> None:
        """An arm has answered a request."""
        self._answered[request_id] = caller, assigned
        if len(self._answered) > MOST_REMEMBERED:
            self._answered.popitem(last=False)

    def score(self, request_id: str, caller: str, score: float) -> bool:
        """Count a caller's score, once for each request. Returns whether it was one of theirs."""
        known = self._answered.get(request_id)
        if known is None or known[0] != caller:
            return False
        del self._answered[request_id]
        assigned = known[1]
        if not assigned.running.runs:
            return True
        assigned.running.evidence.note(assigned.stage, assigned.arm, assigned.unit, {"score": score})
        assigned.running.changed = True
        return True
