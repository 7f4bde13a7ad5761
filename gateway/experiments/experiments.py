"""All experiments of this gateway: begun, asked for each request, told of each end, kept and shared."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from cache.tasks import end
from gateway.errors import ApiError, no_such_model
from gateway.exchange import Exchange
from gateway.experiments.checking import Checking
from gateway.experiments.codec import from_row, to_row
from gateway.experiments.feedback import Feedback
from gateway.experiments.outcome import outcome_of
from gateway.experiments.running import Running, State
from gateway.experiments.shadow import Shadow
from gateway.experiments.sharing import Sharing
from gateway.experiments.stops import Stops
from gateway.experiments.store import ExperimentStore
from policies.experiment import RAMP, Arm, Experiment, Kind, Sticky

if TYPE_CHECKING:
    from cache.redis_store import RedisStore
    from gateway.fleet import Fleet
    from gateway.settings import Settings

logger = logging.getLogger("paceline.experiments")

MOST = 100
"""Experiments that are known, those that are over included; the oldest of these go first."""
TEND_EVERY_S = 1.0
SWITCH_RAMP = (*RAMP, 1.0)
SWITCH_ADVANCES_AFTER = 50


class Experiments:
    """``assign`` and ``ended`` are all that a request has to do with it: neither waits."""

    def __init__(self, settings: Settings, fleet: Fleet, remote: RedisStore | None) -> None:
        self._settings = settings
        self._fleet = fleet
        self._store = ExperimentStore(settings.data_dir)
        self._sharing = Sharing(remote) if remote is not None else None
        self._known: dict[str, Running] = {}
        self._of_model: dict[str, Running] = {}
        self._gone: set[str] = set()
        """Names that are no longer known and may still be kept."""
        self._task: asyncio.Task[None] | None = None
        self._checking = Checking()
        self.stops = Stops()
        self.shadow = Shadow(fleet, self._checking)
        self.feedback = Feedback()

    async def start(self) -> None:
        """Go on with what was kept, and begin what the configuration declares."""
        for row in await self._store.load():
            try:
                self._known[row[0]] = from_row(row, self.stops)
            except msgspec.DecodeError as error:
                logger.warning("the experiment %s cannot be read (%s) and is left out", row[0], error)
        self._declare()
        self._placed()
        self._fleet.on_change(self._placed)
        self._task = asyncio.get_running_loop().create_task(self._tend(), name="experiments")

    async def aclose(self) -> None:
        """End the copies, keep everything, close the file."""
        await end(self._task)
        await self.shadow.aclose()
        await self._checking.aclose()
        await self._keep()
        await self._store.aclose()

    # --- a request's way

    def assign(self, exchange: Exchange, headers: Mapping[bytes, bytes]) -> None:
        """Send a request for a bare model name to an arm, where there is an experiment with this model."""
        if not self._of_model:
            return
        model, selector = self._fleet.resolve(exchange.incoming.model)
        running = self._of_model.get(model)
        if running is None or selector or exchange.wishes.pinned:
            return
        assigned = running.draw(_identity(running.experiment, exchange, headers))
        exchange.assigned = assigned
        if assigned.only:
            exchange.wishes = replace(exchange.wishes, only=assigned.only)

    def ended(self, exchange: Exchange) -> None:
        """Take in what became of a request."""
        assigned = exchange.assigned
        if assigned is None or not assigned.running.runs:
            return
        outcome = outcome_of(exchange, assigned)
        if outcome is None:
            return
        assigned.running.add(outcome)
        self._settle(assigned.running)
        if exchange.ended != "done" or outcome.failed:
            return
        self.feedback.remember(exchange.request_id, exchange.wishes.caller, assigned)
        if assigned.is_checked:
            self._checking.offer(exchange, assigned)
        if assigned.is_copied:
            self.shadow.offer(exchange, assigned)

    # --- commands

    @property
    def all(self) -> list[Running]:
        """All that are known, those that run first."""
        return sorted(self._known.values(), key=lambda each: (not each.runs, -each.state.began_at))

    def find(self, name: str) -> Running:
        """Return one by its name. Raises ``ApiError`` (404)."""
        running = self._known.get(name)
        if running is None:
            known = ", ".join(sorted(self._known)) or "none"
            raise ApiError(404, f"There is no experiment {name!r}; known: {known}.", code="no_such_experiment")
        return running

    def begin(self, experiment: Experiment) -> Running:
        """Begin one. Raises ``ApiError``: 404 for a model that is not served, 409 while another one has it, 400 for an
        arm without a deployment."""
        model, selector = self._fleet.resolve(experiment.model)
        deployments = self._fleet.deployments_of(model)
        if selector or not deployments:
            raise no_such_model(experiment.model, self._fleet.models())
        self._is_free(model, experiment.name)
        running = Running(replace(experiment, model=model), self.stops)
        running.place(deployments)
        for arm, ids in zip(experiment.arms, running.arms, strict=True):
            if arm.deployments and not ids:
                choices = ", ".join(sorted(each.id for each in deployments))
                message = f"No deployment of {model} is meant by {', '.join(arm.deployments)}; there are: {choices}."
                raise ApiError(400, message, code="no_such_deployment")
        both = [set(first) & set(second) for i, first in enumerate(running.arms) for second in running.arms[:i]]
        if any(both) and experiment.kind is not Kind.SWITCH:
            raise ApiError(400, f"{', '.join(sorted(set().union(*both)))} would serve two arms.", code="arms_overlap")
        before = self._known.get(experiment.name)
        if before is not None:
            running.state = replace(running.state, version=max(running.state.version, before.state.version + 1))
        self._add(running)
        logger.info("experiment %s has begun on %s", experiment.name, model)
        return running

    def ramp(self, name: str, share: float | None) -> Running:
        """Give the new arms a share, the next one of the ramp when left out. Raises ``ApiError``."""
        running = self._running(name)
        share = running.next_share() if share is None else share
        if share is None:
            raise ApiError(409, f"{name} is at the end of its ramp ({running.state.share:.0%}).", code="end_of_ramp")
        try:
            running.ramp(share)
        except ValueError as error:
            raise ApiError(409, f"{name}: {error}.", code="too_many_stages") from None
        return running

    def stop(self, name: str, why: str = "stopped by command") -> Running:
        """End one. Raises ``ApiError``."""
        running = self._running(name)
        running.end(why)
        self._settle(running)
        return running

    def switch(self, model: str, to: str, *, ramp: bool) -> Running:
        """Have a deployment serve all of a model's bare name, at once or step by step. Raises ``ApiError``."""
        model, _ = self._fleet.resolve(model)
        name = switch_name(model)
        if (before := self._known.get(name)) is not None and before.runs:
            before.end(f"switched to {to} instead")
        return self.begin(
            Experiment(
                name=name,
                model=model,
                arms=(Arm("before"), Arm("after", (to,))),
                kind=Kind.SWITCH,
                ramp=SWITCH_RAMP if ramp else (1.0,),
                advance_after=SWITCH_ADVANCES_AFTER if ramp else None,
            )
        )

    def switch_back(self, model: str) -> Running:
        """End a switch. Raises ``ApiError``."""
        return self.stop(switch_name(self._fleet.resolve(model)[0]), "switched back")

    def _running(self, name: str) -> Running:
        running = self.find(name)
        if not running.runs:
            raise ApiError(409, f"{name} is over: {running.state.ended}.", code="experiment_over")
        return running

    def _is_free(self, model: str, name: str) -> None:
        other = self._of_model.get(model)
        if other is not None and other.runs:
            held = other.experiment.name
            how = f"`paceline switch {model} --back`" if other.experiment.kind is Kind.SWITCH else f"stop {held}"
            raise ApiError(409, f"{held} has the requests of {model}: {how} first.", code="model_taken")
        before = self._known.get(name)
        if before is not None and before.runs:
            raise ApiError(409, f"{name} runs already, on {before.experiment.model}.", code="name_taken")

    # --- what is known

    def _add(self, running: Running) -> None:
        self._known.pop(running.experiment.name, None)
        self._known[running.experiment.name] = running
        over = [name for name, each in self._known.items() if not each.runs]
        for name in over[: max(0, len(self._known) - MOST)]:
            del self._known[name]
            self._gone.add(name)
        self._gone.discard(running.experiment.name)
        self._placed()

    def _settle(self, running: Running) -> None:
        """What has ended takes no request any more."""
        if not running.runs:
            self._of_model = {model: each for model, each in self._of_model.items() if each is not running}

    def _placed(self) -> None:
        """Look which deployments the arms have now."""
        self._of_model = {}
        for running in self._known.values():
            running.place(self._fleet.deployments_of(running.experiment.model))
            if running.runs:
                self._of_model.setdefault(self._fleet.resolve(running.experiment.model)[0], running)

    def _declare(self) -> None:
        """Begin what the configuration declares for the first time or in another way, end what it does no longer."""
        declared = {each.name: each.experiment() for each in self._settings.experiments}
        for name, running in self._known.items():
            if running.runs and running.state.declared and name not in declared:
                running.end("no longer in the configuration")
        for name, experiment in declared.items():
            known = self._known.get(name)
            if known is not None and known.experiment == experiment:
                continue
            others = [each for each in self._known.values() if each.runs and each.experiment.name != name]
            if taken := next((each for each in others if each.experiment.model == experiment.model), None):
                told = "the experiment %s does not begin: %s has the requests of %s; begin it once that has ended"
                logger.warning(told, name, taken.experiment.name, experiment.model)
                continue
            self._known[name] = Running(experiment, self.stops, declared=True)

    async def _tend(self) -> None:
        """Keep what has changed, and agree with the other gateways."""
        while True:
            await asyncio.sleep(TEND_EVERY_S)
            if self._sharing is not None:
                self._adopt(await self._sharing.exchange(self._known, tuple(self._gone)))
            await self._keep()

    def _adopt(self, told: Iterable[tuple[Experiment, State]]) -> None:
        for experiment, state in told:
            known = self._known.get(experiment.name)
            if known is None or known.experiment != experiment:
                if not state.ended if known is None else state.version > known.state.version:
                    self._add(Running(experiment, self.stops, state))
            elif state.version > known.state.version:
                known.adopt(state)
                self._placed()

    async def _keep(self) -> None:
        rows = [to_row(each) for each in self._known.values() if each.changed]
        for each in self._known.values():
            each.changed = False
        gone, self._gone = self._gone, set()
        if rows or gone:
            await self._store.save(rows, gone)


def switch_name(model: str) -> str:
    """Return the name of a model's switch."""
    return f"switch:{model}"


def _identity(experiment: Experiment, exchange: Exchange, headers: Mapping[bytes, bytes]) -> str:
    """Who is kept to an arm: whoever names nothing is drawn anew for each request."""
    match experiment.sticky:
        case Sticky.KEY:
            named = exchange.wishes.caller
        case Sticky.USER:
            named = exchange.incoming.user
        case Sticky.HEADER:
            named = headers.get(experiment.header.encode(), b"").decode("latin-1")
        case Sticky.REQUEST:
            named = ""
    return named or exchange.request_id
