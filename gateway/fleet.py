"""All engines together: the snapshot that routing sees, the ledger of what runs, and how each request ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from adapters.base import Call
from adapters.errors import Busy, EngineError, Loading, Rejected, Unreachable
from gateway.attempt import Attempt
from gateway.engine import Engine
from gateway.exchange import Exchange, Wishes
from gateway.incoming import IMAGE_TOKENS, Incoming
from gateway.learned import Learned
from gateway.settings import ModelSettings, RoutingSettings
from measure.traffic import Traffic
from measure.verdicts import Verdict, standings
from policies.breaker import Breaker, Change, Pass
from policies.ledger import Ledger
from policies.retry import RetryBudget
from policies.route import FleetView, route
from policies.selector import resolve_model
from policies.types import (
    Candidate,
    Decision,
    Deployment,
    Hardware,
    Health,
    LoadView,
    RequestFacts,
)

logger = logging.getLogger("paceline.fleet")

LOADING_LIMIT_S = 300.0
"""How long a request waits for a model that is being loaded."""
BUSY_S = 1.0
"""How long an engine that said "busy" without a time is asked only when nobody else can."""

_IDLE = LoadView()
_FAILED = LoadView(Health.DOWN, note="failed a moment ago")


class Fleet:
    """The live deployments. All state is touched from one event loop, and nothing is held across an await."""

    def __init__(self, routing: RoutingSettings, models: dict[str, ModelSettings]) -> None:
        self._routing = routing
        self._settings = models
        self._aliases = {alias: name for name, settings in models.items() for alias in settings.aliases}
        self._engines: dict[str, Engine] = {}
        self._by_deployment: dict[str, Engine] = {}
        self._of_model: dict[str, tuple[Deployment, ...]] = {}
        self._ledger = Ledger()
        self._breakers: dict[str, Breaker] = {}
        self._busy_until: dict[str, float] = {}
        self._last_used: dict[str, str] = {}
        self._traffic: dict[str, Traffic] = {}
        self._budget = RetryBudget()
        self._listeners: list[Callable[[], None]] = []
        self._verdicts: Mapping[str, Verdict] = {}
        self._trusted = {name: each.trusted_precision for name, each in models.items() if each.trusted_precision}
        self._quality_why: dict[str, str] = {}
        self.learned = Learned()
        self.deployments: tuple[Deployment, ...] = ()
        self.stopping = False

    # --- engines

    def add(self, engine: Engine) -> None:
        """Take an engine in and watch it."""
        self._engines[engine.name] = engine
        engine.start()

    @property
    def engines(self) -> tuple[Engine, ...]:
        """All engines, those that are down included."""
        return tuple(self._engines.values())

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after deployments or their health have changed."""
        self._listeners.append(listener)

    def judge(self, verdicts: Mapping[str, Verdict]) -> None:
        """Take up what is known of fingerprints beyond their speed; all that was known before is forgotten."""
        if verdicts != self._verdicts:
            self._verdicts = verdicts
            self.changed()

    def quality_why(self, deployment: Deployment) -> str:
        """Return why a deployment's quality is what it is, for a person; "" when it is untested."""
        return self._quality_why.get(deployment.id, "")

    def changed(self) -> None:
        """Take up what the engines serve now."""
        serving = [deployment for engine in self._engines.values() for deployment in engine.deployments]
        standing = standings(serving, self._verdicts, self._trusted)
        deployments = tuple(each.deployment for each in standing)
        self._quality_why = {each.deployment.id: each.why for each in standing}
        if deployments != self.deployments:
            self.deployments = deployments
            self._by_deployment = {d.id: engine for engine in self._engines.values() for d in engine.deployments}
            by_model: dict[str, list[Deployment]] = {}
            for deployment in deployments:
                by_model.setdefault(deployment.model, []).append(deployment)
            self._of_model = {model: tuple(members) for model, members in by_model.items()}
            self._ledger.place(deployments, asyncio.get_running_loop().time())
            self._breakers = {d.id: self._breakers.get(d.id) or Breaker() for d in deployments}
            self._busy_until = {id_: until for id_, until in self._busy_until.items() if id_ in self._by_deployment}
            self._last_used = {model: id_ for model, id_ in self._last_used.items() if model in self._of_model}
        self.learned.keep([d for d in deployments if self.health_of(d) is not Health.DOWN])
        for listener in self._listeners:
            listener()

    def serves(self, deployment: Deployment) -> bool:
        """Return whether a deployment could take a request at this moment."""
        now = asyncio.get_running_loop().time()
        return self.health_of(deployment) is Health.UP and self._breakers[deployment.id].allows(now)

    def is_measurable(self, deployment: Deployment) -> bool:
        """Return whether a deployment is up and has no measurement."""
        return self.health_of(deployment) is Health.UP and not self.learned.predictor.knows(deployment.fingerprint)

    async def aclose(self) -> None:
        """Stop all engines at once."""
        await asyncio.gather(*(engine.aclose() for engine in self._engines.values()))

    def engine_of(self, deployment: Deployment) -> Engine:
        """Return the engine that a deployment runs on."""
        return self._by_deployment[deployment.id]

    def health_of(self, deployment: Deployment) -> Health:
        """Return whether a deployment can take requests now."""
        engine = self._by_deployment.get(deployment.id)
        return Health.DOWN if engine is None else engine.health

    def models(self) -> list[str]:
        """Return the logical names and aliases that clients may ask for."""
        return sorted(self._of_model.keys() | self._aliases.keys())

    def deployments_of(self, name: str) -> tuple[Deployment, ...]:
        """Return the deployments of a logical name or an alias."""
        return self._of_model.get(self._aliases.get(name, name), ())

    def inflight_on(self, deployment: Deployment) -> int:
        """Return how many requests of ours run on a deployment."""
        return self._ledger.view(deployment.id).inflight

    def inflight(self, engine: Engine) -> int:
        """Return how many requests of ours run on an engine."""
        return sum(self.inflight_on(deployment) for deployment in engine.deployments)

    def traffic_on(self, hardware: Hardware) -> Traffic:
        """Return the live requests on a host, for measurements that give way to them."""
        traffic = self._traffic.get(hardware.host)
        if traffic is None:
            traffic = self._traffic[hardware.host] = Traffic()
        return traffic

    # --- a request's way

    def facts(self, incoming: Incoming, wishes: Wishes) -> RequestFacts:
        """Return what the policy has to know of a request."""
        model, selector = resolve_model(incoming.model, self._of_model.keys() | self._aliases.keys())
        model = self._aliases.get(model, model)
        probable, least = self.learned.ratio.estimate(model, incoming.text_bytes)
        settings = self._settings.get(model)
        return RequestFacts(
            model=model,
            selector=selector,
            operation=incoming.operation,
            prompt_tokens=probable + incoming.images * IMAGE_TOKENS,
            prompt_tokens_least=least,
            expected_output=self.learned.output.expect(model, wishes.caller, incoming.max_output),
            max_output=incoming.max_output,
            stream=incoming.stream,
            needs=incoming.needs,
            prefix=incoming.prefix,
            scope=wishes.caller,
            objective=wishes.objective or (settings and settings.objective) or self._routing.objective,
            pinned=wishes.pinned,
        )

    def route(self, facts: RequestFacts, *, without: Collection[str] = ()) -> Decision:
        """Decide for one request on what is known at this moment; deployments in ``without`` count as down."""
        now = asyncio.get_running_loop().time()
        view = self._view(facts, now)
        if without:
            view = replace(view, loads={**view.loads, **dict.fromkeys(without, _FAILED)})
        return route(facts, view)

    def _view(self, facts: RequestFacts, now: float) -> FleetView:
        block = self.learned.block_tokens(facts.model) if facts.prefix else 0
        return FleetView(
            deployments=self.deployments,
            loads={deployment.id: self._load(deployment, facts, block, now) for deployment in self.deployments},
            predictor=self.learned.predictor,
            last_used=self._last_used,
            now=now,
            cost_to_others=self._routing.cost_to_others,
        )

    def _load(self, deployment: Deployment, facts: RequestFacts, block_tokens: int, now: float) -> LoadView:
        id_ = deployment.id
        engine = self._by_deployment[id_]
        work = self._ledger.view(id_)
        resident = engine.is_resident(deployment)
        is_open = not self._breakers[id_].allows(now)
        busy_until = self._busy_until.get(id_)
        retry_after_s = max(0.0, busy_until - now) if busy_until is not None else 0.0
        cached = 0
        if block_tokens and facts.model == deployment.model:
            cached = self.learned.prefixes.cached_tokens(id_, facts.prefix, block_tokens)
        foreign = engine.foreign_running or engine.foreign_waiting
        up = engine.health is Health.UP
        if up and resident and not (work.inflight or foreign or cached or is_open or retry_after_s):
            return _IDLE
        return LoadView(
            engine.health,
            *work,
            foreign_running=engine.foreign_running,
            foreign_waiting=engine.foreign_waiting,
            age_s=now - engine.gauges_at,
            resident=resident,
            load_s=engine.remaining_load_s(now) if engine.health is Health.LOADING else engine.usual_load_s,
            breaker_open=is_open,
            retry_after_s=retry_after_s,
            cached_tokens=min(cached, max(0, facts.prompt_tokens - 1)),
            note=engine.note,
        )

    def begin(self, exchange: Exchange, candidate: Candidate) -> Attempt:
        """Count a request on the deployment that was chosen, before anything is sent. The attempt must be ended.

        Raises ``Unreachable`` for a deployment that has gone since the decision, ``Busy`` where another request is the
        one that finds out whether a failed deployment has recovered.
        """
        deployment, facts, incoming = candidate.deployment, exchange.facts, exchange.incoming
        now = asyncio.get_running_loop().time()
        engine = self._by_deployment.get(deployment.id)
        if engine is None:
            raise Unreachable("is gone", engine=deployment.id)
        leave = self._enter(deployment, now)
        cold = engine.health is Health.LOADING or not engine.is_resident(deployment)
        cached = 0
        if facts.prefix:
            block = self.learned.block_tokens(facts.model)
            cached = self.learned.prefixes.cached_tokens(deployment.id, facts.prefix, block)
        exchange.deployment = deployment
        exchange.estimate = candidate.estimate
        exchange.reason = candidate.reason
        exchange.attempts += 1
        if exchange.attempts == 1:
            self._budget.request(now)
        self._last_used[facts.model] = deployment.id
        self.traffic_on(deployment.hardware).begin()
        lease = self._ledger.open(
            deployment.id,
            prefill_tokens=max(1, facts.prompt_tokens - cached),
            decode_tokens=facts.expected_output,
            context_tokens=facts.prompt_tokens,
            now=now,
        )
        call = Call(
            operation=incoming.operation,
            body=incoming.body,
            model=incoming.model,
            engine_model=deployment.engine_model,
            stream=incoming.stream,
            include_usage=incoming.include_usage,
            prompt_tokens=facts.prompt_tokens,
            max_output=incoming.max_output,
            context=deployment.context,
            headers=exchange.upstream_headers,
        )
        new_prompt = bool(facts.prefix) and cached == 0
        return Attempt(self, engine, exchange, candidate, call, lease, leave, was_cold=cold, new_prompt=new_prompt)

    def _enter(self, deployment: Deployment, now: float) -> Pass:
        leave, change = self._breakers[deployment.id].enter(now)
        _log_change(deployment, change)
        if leave is None:
            raise Busy("failed repeatedly and is being left alone", engine=deployment.id)
        return leave

    def may_retry(self, error: EngineError) -> bool:
        """Whether another candidate may be tried after this failure: a refusal always, a fault within the budget."""
        return not error.counts_for_breaker or self._budget.spend(asyncio.get_running_loop().time())

    async def wait_until_loaded(self, deployment: Deployment) -> bool:
        """Wait for a deployment that is being loaded. Returns whether it is up."""
        engine = self._by_deployment.get(deployment.id)
        return engine is not None and await engine.wait_until_up(LOADING_LIMIT_S)

    def served(self, attempt: Attempt) -> None:
        """An answer came whole: believe the engine, and learn."""
        attempt.exchange.ended = "done"
        self._end(attempt)
        _log_change(attempt.candidate.deployment, attempt.leave.succeeded())
        self.learned.from_answer(attempt)

    def failed(self, attempt: Attempt, error: EngineError) -> None:
        """An engine failed or refused: broken, busy and a wrong request are three different things."""
        attempt.exchange.ended = "failed"
        self._end(attempt)
        deployment = attempt.candidate.deployment
        now = asyncio.get_running_loop().time()
        if error.counts_for_breaker:
            _log_change(deployment, attempt.leave.failed(now))
        elif isinstance(error, Rejected):
            _log_change(deployment, attempt.leave.succeeded())
        else:
            attempt.leave.abandoned()
        if isinstance(error, Busy):
            self._busy_until[deployment.id] = now + (error.retry_after_s or BUSY_S)
        elif isinstance(error, Loading):
            attempt.engine.mark_loading()
        elif isinstance(error, Unreachable):
            attempt.engine.look_again()

    def cancelled(self, attempt: Attempt) -> None:
        """The client left: nobody's fault, and nothing to learn from."""
        attempt.exchange.ended = "cancelled"
        self._end(attempt)
        attempt.leave.abandoned()

    def _end(self, attempt: Attempt) -> None:
        self.traffic_on(attempt.candidate.deployment.hardware).end()


def _log_change(deployment: Deployment, change: Change | None) -> None:
    if change is not None:
        logger.warning("deployment %s: %s", deployment.id, change)
