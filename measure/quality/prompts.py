"""One prompt of the suite: what is sent, and what a good answer to it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from measure.quality.checks import Check
from measure.quality.reply import Reply
from policies.types import Capability

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat and the checks that its answer has to pass, all of them; ``max_tokens`` is short, so that a suite is.

    ``tools`` are sent in OpenAI's form, and only to deployments that know tools.
    """

    id: str
    category: str
    messages: tuple[Message, ...]
    checks: tuple[Check, ...]
    max_tokens: int = 48
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def needs(self) -> frozenset[Capability]:
        """What a deployment has to be able to do beside chatting."""
        return frozenset({Capability.TOOLS}) if self.tools else frozenset()

    @property
    def text_bytes(self) -> int:
        """The length of its text, from which its length in tokens is estimated."""
        return sum(len(message["content"].encode()) for message in self.messages)

    def problems(self, reply: Reply) -> tuple[str, ...]:
        """Return what is wrong with an answer, each completing "the answer …"; empty for a good one."""
        return tuple(problem for check in self.checks if (problem := check.problem(reply)))


def user(*turns: str) -> tuple[Message, ...]:
    """Return a chat whose turns alternate between the user, who begins and ends it, and the assistant."""
    return tuple({"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns))
