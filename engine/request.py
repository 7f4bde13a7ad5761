"""A request as the engine sees it: what was asked, how far it has come, and what a step brought."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Structure:
    """The form that an answer must have: any JSON object, a JSON schema, a regular expression, or an EBNF grammar.

    ``text`` is the schema (as JSON), the expression or the grammar; empty for any JSON object.
    """

    kind: Literal["json_object", "json_schema", "regex", "grammar"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen and when an answer ends. ``temperature`` 0 is greedy; ``top_k`` 0 means all.

    ``seed`` makes the choices repeatable whatever else runs in the batch. ``logprobs`` is how many alternatives each
    token comes with (0: only its own), None for none at all. Penalties as in OpenAI's API; ``repetition_penalty`` as in
    the CTRL paper (Keskar et al. 2019), over prompt and answer.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    structure: Structure | None = None


class Finish(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt and its answer so far. The scheduler owns ``computed``, ``blocks``, ``cached`` and ``drafts``.

    ``tokens`` are the prompt and all accepted output; ``computed`` of them have their keys and values in the cache, in
    ``blocks`` (block i holds positions i * block_size and on). ``drafts`` are proposed tokens behind ``tokens`` that
    the next step verifies. ``pools`` marks a sequence that is embedded (mean of its hidden states) instead of
    continued. Times are seconds of the monotonic clock.
    """

    id: int
    prompt_length: int
    tokens: list[int]
    sampling: Sampling
    priority: int = 0
    """Lower goes first."""
    pools: bool = False
    seed: int = 0
    """The seed that its choices are made with: ``sampling.seed``, or a random one."""
    computed: int = 0
    cached: int = 0
    """Prompt tokens whose keys and values were found in the prefix cache when it was first admitted."""
    blocks: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    preemptions: int = 0
    arrived_s: float = 0.0
    started_s: float | None = None
    first_token_s: float | None = None

    @property
    def generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def output(self) -> Tokens[int]:
        """The answer's tokens so far."""
        return self.tokens[self.prompt_length :]


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence's share of one step: the ``count`` positions from ``start`` on, drafts included.

    ``samples`` says that they reach the sequence's end, so that the next token can be chosen: the logits of the last
    1 + len(drafts) positions are wanted.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step computes, at most a token budget in all. Rows are in the order of the batch."""

    rows: tuple[Row, ...]
    preempted: tuple[Sequence, ...] = ()

    @property
    def tokens(self) -> int:
        """Positions that the step computes."""
        return sum(row.count for row in self.rows)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A chosen token's log-probability (natural logarithm, after the temperature is left out) and its best rivals'."""

    chosen: float
    best: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What a step brought one of its rows: the tokens accepted (none while the prompt is read), or an error.

    ``tokens`` are 1 + the drafts accepted; ``logprobs`` has one entry a token when asked for. ``embedding`` is set for
    a sequence that pools, once it is read whole.
    """

    sequence: Sequence
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: tuple[float, ...] | None = None
    error: EngineError | None = None
