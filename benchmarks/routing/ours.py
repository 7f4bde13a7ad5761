"""Paceline's own routing in the simulator: the very code that the gateway runs, fed as the gateway feeds it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.routing.engine import BLOCK_TOKENS, Engine
from benchmarks.routing.measured import Measurement
from benchmarks.routing.policy import Policy
from benchmarks.routing.request import Request
from benchmarks.routing.world import World
from policies.lease import Lease
from policies.ledger import Ledger
from policies.predict import Predictor
from policies.prefix import PrefixMemory
from policies.route import route
from policies.tokens import OutputLength
from policies.turns import Turns
from policies.types import Capability, Decision, Health, LoadView, Observation, RequestFacts
from policies.view import FleetView

_TELLS_TIMINGS = frozenset({"llamacpp", "ollama"})
"""Engines whose answers carry their own prefill and decode times."""


class Paceline(Policy):
    """``policies.route`` with ledger, predictor, prefix memory and learned answer lengths."""

    name = "Paceline"

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self.deployments = tuple(engine.deployment for engine in world.engines)
        self.predictor = Predictor()
        self._engine = {engine.deployment.id: engine for engine in world.engines}
        self._ledger = Ledger()
        self._ledger.place(self.deployments, 0.0)
        self._prefixes = PrefixMemory()
        self._outputs = OutputLength()
        self._turns = Turns()
        self._last_used: dict[str, str] = {}
        self._leases: dict[int, Lease] = {}
        self._facts: dict[int, tuple[RequestFacts, Decision, bool]] = {}
        dice = random.Random(seed)
        for engine in world.engines:
            known = Measurement(world.scenario.members, engine.index, dice)
            self.predictor.measured(
                engine.deployment.fingerprint, known.samples, known.pairs, engine.deployment.hardware, known.batches
            )

    def choose(self, request: Request, able: Sequence[Engine], now: float) -> Engine:
        facts = self._ask(request)
        loads = self._loads(facts, now)
        decision = route(
            facts, FleetView(self.deployments, loads, self.predictor, self._last_used, now, usual=self._ledger.usual())
        )
        assert decision.chosen is not None
        chosen = decision.chosen.deployment
        held = self._prefixes.cached_tokens(chosen.id, facts.prefix, BLOCK_TOKENS)
        somewhere = max(self._prefixes.holders(facts.prefix, BLOCK_TOKENS).values(), default=0)
        self._turns.learn(facts.model, request.caller, continues=2 * somewhere > facts.prompt_tokens)
        self._facts[request.number] = facts, decision, held == 0 and bool(facts.prefix)
        self._last_used[facts.model] = chosen.id
        return self._engine[chosen.id]

    def _ask(self, request: Request) -> RequestFacts:
        model = self.deployments[0].model
        return RequestFacts(
            model,
            selector=request.selector,
            prompt_tokens=request.estimated_tokens,
            prompt_tokens_least=request.estimated_tokens // 3,
            expected_output=self._outputs.expect(model, request.caller, request.max_output),
            max_output=request.max_output,
            needs=frozenset({Capability.CHAT}),
            prefix=request.prefix,
            scope=request.caller,
            further=self._turns.further(model, request.caller),
        )

    def _loads(self, facts: RequestFacts, now: float) -> dict[str, LoadView]:
        held = self._prefixes.holders(facts.prefix, BLOCK_TOKENS)
        loads = {}
        for engine in self._world.engines:
            id_ = engine.deployment.id
            cold = engine.is_cold(now)
            if id_ not in self._ledger.busy and id_ not in held and not cold and not engine.is_down:
                continue
            self._follow(engine, now)
            loading = now < engine.loading_until
            loads[id_] = LoadView(
                Health.DOWN if engine.is_down else Health.UP,
                *self._ledger.view(id_),
                resident=not cold and not loading,
                load_s=engine.loading_until - now if loading else engine.load_s,
                cached_tokens=min(held.get(id_, 0), facts.prompt_tokens - 1),
            )
        return loads

    def _follow(self, engine: Engine, now: float) -> None:
        """Tell the ledger what has come from an engine since it was looked at last."""
        self._world.place_of[engine.index].advance(now)
        for _, _, request in engine.writing:
            self._leases[request.number].wrote(engine.tokens_written(request))
        if engine.deployment.engine == "llamacpp":
            for request in engine.reading:
                done = 1.0 - request.left_s / request.read_s
                self._leases[request.number].read(done * (request.prompt_tokens - request.cached_tokens))

    def sent(self, request: Request, engine: Engine, now: float) -> None:
        facts, _, _ = self._facts[request.number]
        held = self._prefixes.cached_tokens(engine.deployment.id, facts.prefix, BLOCK_TOKENS)
        self._leases[request.number] = self._ledger.open(
            engine.deployment.id,
            prefill_tokens=max(1, facts.prompt_tokens - held),
            decode_tokens=facts.expected_output,
            context_tokens=facts.prompt_tokens,
            now=now,
        )

    def first_token(self, request: Request, engine: Engine, now: float) -> None:
        self._leases[request.number].first_token(now)

    def lost(self, request: Request, engine: Engine, now: float) -> None:
        self._leases.pop(request.number).close(now)
        self._prefixes.keep([d.id for d in self.deployments if d.id != engine.deployment.id])

    def done(self, request: Request, engine: Engine, now: float) -> None:
        deployment = engine.deployment
        lease = self._leases.pop(request.number)
        lease.close(now)
        facts, decision, is_new = self._facts.pop(request.number)
        tells = deployment.engine in _TELLS_TIMINGS
        assert decision.chosen is not None
        self._outputs.learn(facts.model, request.caller, request.output_tokens)
        capacity = (deployment.context or 0) * (deployment.slots or 1) or None
        self._prefixes.remember(deployment.id, facts.prefix, BLOCK_TOKENS, capacity)
        self.predictor.observe(
            Observation(
                deployment.id,
                deployment.fingerprint,
                request.prompt_tokens,
                request.output_tokens,
                ttft_s=request.first_token_at - request.sent_at,
                total_s=now - request.sent_at,
                cached_tokens=request.cached_tokens if deployment.engine != "ollama" else None,
                prefill_s=request.first_token_at - request.reading_since if tells else None,
                decode_s=now - request.first_token_at if tells else None,
                clean=not request.was_cold,
                neighbours=lease.neighbours,
                new_prompt=is_new,
                predicted=decision.chosen.estimate,
                expected_output=facts.expected_output,
            ),
            now,
        )
