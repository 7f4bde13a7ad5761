"""The three phases: one request after the other, four at once, and one that arrives while others run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import TypeVar

from benchmarks.routing_real.client import Client, Messages, Sent
from benchmarks.routing_real.shapes import Shape, shapes

AT_ONCE = 4
IN_THE_BACKGROUND = 2
QUIET_S = 1.2
"""How long it is quiet before each of those that are compared: vLLM keeps a core busy for a second after an answer."""
COST_TO_OTHERS = 0.5
"""What the delay of the others counts: the default of ``routing.cost_to_others``."""

Tell = Callable[[str], None]
T = TypeVar("T")


@dataclass(slots=True)
class Case:
    """One choice beside what it would have been elsewhere: the cost in seconds by deployment, the chosen one's too.

    The cost is the request's total, the median of the ``rounds`` in which every candidate was asked once; while others
    run, with half of the delay that each candidate gave to them.
    """

    sent: Sent
    rounds: list[dict[str, float]] = field(default_factory=list)
    disturbed: bool = False
    again: dict[str, list[Sent]] = field(default_factory=dict)
    """By candidate, all answers to this request with nothing beside it."""

    @property
    def costs(self) -> dict[str, float]:
        """The median of each candidate that was there in every round."""
        return _medians(self.rounds)

    @property
    def regret(self) -> float:
        """How much more the chosen one cost than the cheapest, as a part of the latter."""
        return _regret(self.sent.deployment, self.costs)

    @property
    def regrets_of_one_round(self) -> list[float]:
        """The same for whoever was the cheapest in one round, by what the other rounds say: how well anybody could
        choose who had measured each candidate a moment before."""
        found = []
        for i, one in enumerate(self.rounds):
            others = _medians(without(self.rounds, i))
            known = {name: cost for name, cost in one.items() if name in others}
            if known:
                found.append(_regret(min(known, key=known.__getitem__), others))
        return found


@dataclass(slots=True)
class Phase:
    """What one phase showed."""

    name: str
    sent: list[Sent] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def undisturbed(self) -> Phase:
        """The same without what other programs on this machine disturbed."""
        return Phase(
            self.name,
            [sent for sent in self.sent if not sent.disturbed],
            [case for case in self.cases if not case.disturbed],
            self.errors,
        )

    def add(self, sent: Sent) -> bool:
        """Keep an answer. Returns whether it is one."""
        if sent.error:
            self.errors.append(f"request {sent.shape.number}: {sent.error}")
            return False
        self.sent.append(sent)
        return True


async def one_by_one(
    phase: Phase, client: Client, asked: Sequence[Shape], candidates: Sequence[str], every: int, rounds: int, tell: Tell
) -> None:
    """Send one request after the other; one in ``every`` is asked of each candidate, ``rounds`` times, in an order by
    chance; what the choice was counts as its first."""
    random = Random(len(asked))
    before: Sent | None = None
    history: Messages = []
    for shape in asked:
        tell(phase.name)
        messages = _messages(shape, history if before else [])
        is_compared = not shape.follow_up and shape.number % every == 0
        if is_compared:
            await asyncio.sleep(QUIET_S)
        sent = await client.send(shape, messages)
        if not phase.add(sent):
            before, history = None, []
            continue
        before, history = sent, [*messages, {"role": "assistant", "content": sent.text}]
        if not is_compared:
            continue
        case = Case(sent, [{sent.deployment: sent.total_s}, *({} for _ in range(1, rounds))], sent.disturbed)
        case.again[sent.deployment] = [sent]
        order = [(costs, name) for costs in case.rounds for name in random.sample(candidates, len(candidates))]
        for variant, (costs, name) in enumerate(order, start=1):
            if name in costs:
                continue
            tell(f"the same on {name}")
            await asyncio.sleep(QUIET_S)
            again = await client.send(shape, _messages(shape, [], variant), pinned=name)
            if again.error:
                phase.errors.append(f"request {shape.number} on {name}: {again.error}")
            else:
                costs[name] = again.total_s
                case.again.setdefault(name, []).append(again)
                case.disturbed |= again.disturbed
        if sent.deployment in case.costs:  # else it failed later, which is among the errors
            phase.cases.append(case)


async def at_once(phase: Phase, client: Client, asked: Sequence[Shape], tell: Tell) -> None:
    """Send all, ``AT_ONCE`` at any time."""
    waiting = iter(asked)

    async def work() -> None:
        for shape in waiting:
            tell(phase.name)
            phase.add(await client.send(shape, _messages(shape, [])))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def beside_others(
    phase: Phase, client: Client, scenes: int, first: int, candidates: Sequence[str], tell: Tell
) -> None:
    """Send one request while others run, then again on each candidate beside the same others, each where it was."""
    for scene in range(scenes):
        number = first + scene * (1 + IN_THE_BACKGROUND)
        asked = shapes(1 + IN_THE_BACKGROUND, number)
        running = [Shape(s.number, s.prompt_tokens, 96, stream=True) for s in asked[1:]]
        probe = Shape(number, asked[0].prompt_tokens, asked[0].output_tokens, stream=scene % 2 == 0)
        tell(phase.name)
        sent, beside = await _scene(client, probe, running, 0, pinned="", places=[""] * len(running))
        if not all(phase.add(each) for each in (sent, *beside)):
            continue
        phase.sent = [each for each in phase.sent if each not in beside]
        seen = {sent.deployment: (sent, beside)}
        places = [each.deployment for each in beside]
        for variant, name in enumerate(candidates, start=1):
            if name in seen:
                continue
            tell(f"the same on {name}")
            again, besides = await _scene(client, probe, running, variant, pinned=name, places=places)
            if failed := [each.error for each in (again, *besides) if each.error]:
                phase.errors.append(f"request {number} on {name}: {failed[0]}")
            else:
                seen[name] = (again, besides)
        disturbed = any(each.disturbed for alone, besides in seen.values() for each in (alone, *besides))
        phase.cases.append(Case(sent, [_costs(seen)], disturbed))


async def _scene(
    client: Client, probe: Shape, running: Sequence[Shape], variant: int, *, pinned: str, places: Sequence[str]
) -> tuple[Sent, list[Sent]]:
    """Start what runs in the background, one after the other, then the request in question."""
    tasks = []
    try:
        for shape, place in zip(running, places, strict=True):
            begun = asyncio.Event()
            send = client.send(shape, _messages(shape, [], variant), pinned=place, on_token=begun.set)
            tasks.append(asyncio.create_task(send))
            begins = asyncio.create_task(begun.wait())
            await asyncio.wait((tasks[-1], begins), return_when=asyncio.FIRST_COMPLETED)
            begins.cancel()
        sent = await client.send(probe, _messages(probe, [], variant), pinned=pinned)
        return sent, list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _costs(seen: dict[str, tuple[Sent, list[Sent]]]) -> dict[str, float]:
    """The request's own total and half of what each candidate delayed the others, against the one that did so least."""
    others = {name: sum(each.total_s for each in beside) for name, (_, beside) in seen.items()}
    least = min(others.values())
    return {name: sent.total_s + COST_TO_OTHERS * (others[name] - least) for name, (sent, _) in seen.items()}


def without(items: Sequence[T], i: int) -> list[T]:
    """Return all but one."""
    return [*items[:i], *items[i + 1 :]]


def _medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    everywhere = set[str].intersection(*(set(each) for each in rounds)) if rounds else set[str]()
    return {name: median(each[name] for each in rounds) for name in sorted(everywhere)}


def _regret(chosen: str, costs: dict[str, float]) -> float:
    return costs[chosen] / min(costs.values()) - 1.0


def _messages(shape: Shape, history: Messages, variant: int = 0) -> Messages:
    return [*(history if shape.follow_up else []), {"role": "user", "content": shape.text(variant)}]


def choices(phases: Sequence[Phase]) -> Counter[str]:
    """How often each deployment was chosen."""
    return Counter(sent.deployment for phase in phases for sent in phase.sent)
