"""All engines together: the snapshot that routing sees, the ledger of what runs, and how each request ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from adapters.errors import Busy, EngineError, Loading, Rejected, Unreachable
from gateway.attempt import Attempt
from gateway.breakers import Breakers
from gateway.counting import TokenCounts
from gateway.engine import Engine
from gateway.exchange import Exchange, Wishes
from gateway.incoming import IMAGE_TOKENS, Incoming
from gateway.learned import Learned
from gateway.lingering import Lingering
from gateway.loads import Loads
from gateway.settings import ModelSettings, RoutingSettings
from measure.traffic import Traffic
from measure.verdicts import Verdict, standings
from policies.breaker import State
from policies.ledger import Ledger
from policies.retry import RetryBudget
from policies.route import route
from policies.selector import resolve_model
from policies.types import (
    Candidate,
    Decision,
    Deployment,
    Estimate,
    Hardware,
    Health,
    LoadView,
    Operation,
    RequestFacts,
)
from policies.view import FleetView

logger = logging.getLogger("paceline.fleet")

LOADING_LIMIT_S = 300.0
"""How long a request waits for a model that is being loaded."""
BUSY_S = 1.0
"""How long an engine that said "busy" without a time is asked only when nobody else can."""

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
        self._breakers = Breakers()
        self._lingering = Lingering(self._ledger)
        self._last_used: dict[str, str] = {}
        self._traffic: dict[str, Traffic] = {}
        self._counts = TokenCounts()
        self._budget = RetryBudget()
        self._listeners: list[Callable[[], None]] = []
        self._verdicts: Mapping[str, Verdict] = {}
        self._trusted = {name: each.trusted_precision for name, each in models.items() if each.trusted_precision}
        self._quality_why: dict[str, str] = {}
        self.learned = Learned()
        self._loads = Loads(self._ledger, self._breakers, self._lingering, self.learned)
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
            before = {deployment.id: deployment.fingerprint for deployment in self.deployments}
            # Another version or other weights behind the same name: an engine that was started anew holds nothing.
            self.learned.prefixes.keep({d.id for d in deployments if before.get(d.id) == d.fingerprint})
            self.deployments = deployments
            self._by_deployment = {d.id: engine for engine in self._engines.values() for d in engine.deployments}
            by_model: dict[str, list[Deployment]] = {}
            for deployment in deployments:
                by_model.setdefault(deployment.model, []).append(deployment)
            self._of_model = {model: tuple(members) for model, members in by_model.items()}
            self._counts.place(self._of_model)
            self._ledger.place(deployments, asyncio.get_running_loop().time())
            self._breakers.place(deployments)
            self._loads.place(self._engines.values(), {d.id: (self._by_deployment[d.id], d) for d in deployments})
            self._last_used = {model: id_ for model, id_ in self._last_used.items() if model in self._of_model}
        self.learned.keep([d for d in deployments if self.health_of(d) is not Health.DOWN])
        for listener in self._listeners:
            listener()

    def serves(self, deployment: Deployment) -> bool:
        """Return whether a deployment could take a request at this moment."""
        now = asyncio.get_running_loop().time()
        return self.health_of(deployment) is Health.UP and self._breakers.allow(deployment.id, now)

    def is_measurable(self, deployment: Deployment) -> bool:
        """Return whether a deployment is up and has no measurement."""
        return self.health_of(deployment) is Health.UP and not self.learned.predictor.knows(deployment.fingerprint)

    async def aclose(self) -> None:
        """Stop all engines at once."""
        self._lingering.close()
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

    def resolve(self, name: str) -> tuple[str, str]:
        """Split a name into the logical model, aliases resolved, and the selector."""
        model, selector = resolve_model(name, self._of_model.keys() | self._aliases.keys())
        return self._aliases.get(model, model), selector

    def breaker_of(self, deployment: Deployment) -> State:
        """Return the state of a deployment's breaker."""
        return self._breakers.state(deployment.id)

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

    def is_idle(self, hardware: Hardware) -> bool:
        """Return whether nothing runs on some hardware: none of our live requests, and nobody else's by the gauges."""
        if self.traffic_on(hardware).running:
            return False
        foreign = (
            engine
            for engine in self._engines.values()
            if (engine.foreign_running or engine.foreign_waiting)
            and any(deployment.hardware.shares(hardware) for deployment in engine.deployments)
        )
        return next(foreign, None) is None

    # --- a request's way

    def facts(self, incoming: Incoming, wishes: Wishes, left_s: float | None = None) -> RequestFacts:
        """Return what the policy has to know of a request; ``left_s`` are the seconds until its deadline."""
        model, selector = self.resolve(incoming.model)
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
            messages=incoming.messages,
            scope=wishes.caller,
            objective=wishes.objective or (settings and settings.objective) or self._routing.objective,
            pinned=wishes.pinned,
            only=wishes.only,
            further=self.learned.turns.further(model, wishes.caller),
            deadline_s=left_s,
        )

    async def exact(self, facts: RequestFacts, incoming: Incoming) -> RequestFacts:
        """Return the facts with the prompt as counted by an engine, when it may not fit a context; else as they are."""
        if not self._counts.may_not_fit(facts):
            return facts
        up = [
            (deployment, adapter)
            for deployment in self._of_model[facts.model]
            if self.health_of(deployment) is Health.UP
            and (adapter := self._by_deployment[deployment.id].source.adapter) is not None
        ]
        return await self._counts.exact(facts, incoming, up)

    def route(self, facts: RequestFacts, *, without: Collection[str] = ()) -> Decision:
        """Decide for one request on what is known at this moment; deployments in ``without`` count as down.

        Where the arm of an experiment cannot serve it, whoever can does.
        """
        now = asyncio.get_running_loop().time()
        view = self._view(facts, now)
        if without:
            view = replace(view, loads={**view.loads, **dict.fromkeys(without, _FAILED)})
        decision = route(facts, view)
        if facts.only and not decision.candidates:
            decision = route(replace(facts, only=frozenset()), view)
        return decision

    def _view(self, facts: RequestFacts, now: float) -> FleetView:
        return FleetView(
            deployments=self.deployments,
            loads=self._loads.views(facts, now),
            predictor=self.learned.predictor,
            last_used=self._last_used,
            now=now,
            cost_to_others=self._routing.cost_to_others,
            margins=(self._routing.margin_8_bits, self._routing.margin_4_bits),
            usual=self._ledger.usual(),
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
        leave = self._breakers.enter(deployment, now)
        cold = engine.health is Health.LOADING or not engine.is_resident(deployment)
        exchange.deployment = deployment
        exchange.estimate = candidate.estimate
        exchange.reason = candidate.reason
        exchange.attempts += 1
        if exchange.attempts == 1:
            self._budget.request(now)
            if exchange.read_at:
                exchange.own_s = time.monotonic() - exchange.read_at - exchange.waited_s - exchange.lookup_s
        self._last_used[facts.model] = deployment.id
        self._lingering.end(deployment.id)
        self.traffic_on(deployment.hardware).begin()
        lease = self._ledger.open(
            deployment.id,
            prefill_tokens=max(1, facts.prompt_tokens - candidate.cached_tokens),
            decode_tokens=facts.expected_output,
            context_tokens=facts.prompt_tokens,
            now=now,
        )
        span_id, headers = "", exchange.upstream_headers
        if exchange.trace is not None:
            span_id, headers = exchange.trace.call(headers)
        call = incoming.call_to(deployment, facts.prompt_tokens, include_usage=incoming.include_usage, headers=headers)
        new_prompt = bool(facts.prefix) and not candidate.cached_tokens
        attempt = Attempt(
            self,
            engine,
            exchange,
            candidate,
            call,
            lease,
            leave,
            was_cold=cold,
            new_prompt=new_prompt,
            span_id=span_id,
        )
        exchange.tries.append(attempt)
        return attempt

    def may_retry(self, error: EngineError) -> bool:
        """Whether another candidate may be tried after this failure: a refusal always, a fault within the budget."""
        return not error.counts_for_breaker or self._budget.spend(asyncio.get_running_loop().time())

    def alone(self, facts: RequestFacts, deployment: Deployment) -> Estimate | None:
        """Predict a request on a deployment with nothing else there, its model loaded; ``None`` if unmeasured."""
        output = 0 if facts.operation is Operation.EMBEDDINGS else facts.expected_output
        now = asyncio.get_running_loop().time()
        return self.learned.predictor.alone(deployment, facts.prompt_tokens, output, now)

    async def wait_until_loaded(self, deployment: Deployment, left_s: float | None) -> bool:
        """Wait for a deployment that is being loaded, no longer than the request's deadline allows.

        Returns whether it is up.
        """
        engine = self._by_deployment.get(deployment.id)
        limit_s = LOADING_LIMIT_S if left_s is None else min(LOADING_LIMIT_S, left_s)
        return engine is not None and await engine.wait_until_up(limit_s)

    def served(self, attempt: Attempt) -> None:
        """An answer came whole: believe the engine, and learn."""
        attempt.exchange.ended = "done"
        self._end(attempt)
        self._breakers.note(attempt.candidate.deployment, attempt.leave.succeeded())
        self.learned.from_answer(attempt)

    def failed(self, attempt: Attempt, error: EngineError) -> None:
        """An engine failed or refused: broken, busy and a wrong request are three different things."""
        attempt.exchange.ended = "failed"
        self._end(attempt)
        deployment = attempt.candidate.deployment
        now = asyncio.get_running_loop().time()
        if error.counts_for_breaker:
            self._breakers.note(deployment, attempt.leave.failed(now))
        elif isinstance(error, Rejected):
            self._breakers.note(deployment, attempt.leave.succeeded())
        else:
            attempt.leave.abandoned()
        if isinstance(error, Busy):
            self._loads.leave_alone(deployment.id, now + (error.retry_after_s or BUSY_S))
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
        deployment, lingers_s = attempt.candidate.deployment, attempt.engine.adapter.lingers_s
        self.traffic_on(deployment.hardware).end()
        if lingers_s and deployment.hardware.devices and not deployment.hardware.has_accelerator:
            self._lingering.begin(deployment.id, lingers_s)
