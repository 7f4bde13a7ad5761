"""A simulated request: what it asks for, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """What is drawn before the simulation begins, the same for every policy, and the times that the policy makes of it.

    ``estimated_tokens`` is what a gateway takes the prompt to have. ``luck`` multiplies the time that the request takes
    on each engine: what is measured twice is never the same. ``then`` is the next turn of the same conversation, and
    ``pause_s`` the time between the answer and that turn.
    """

    number: int
    at: float
    prompt_tokens: int
    output_tokens: int
    estimated_tokens: int
    caller: str
    luck: tuple[float, ...]
    selector: str = ""
    max_output: int | None = None
    prefix: tuple[int, ...] = ()
    then: Request | None = None
    pause_s: float = 0.0
    began_at: float = 0.0
    sent_at: float = 0.0
    first_token_at: float = 0.0
    done_at: float = 0.0
    cached_tokens: int = 0
    was_cold: bool = False
    read_s: float = 0.0
    """Seconds of reading, and of writing, that it takes alone on the engine where it is."""
    write_s: float = 0.0
    left_s: float = field(default=0.0)
    """What is left of the reading."""
    ends_at: float = 0.0
    """On the engine's own clock of writing (``Engine.written_s``), the end of the answer."""
    reading_since: float = 0.0

    @property
    def ttft_s(self) -> float:
        """From the moment that the client asked."""
        return self.first_token_at - self.began_at

    @property
    def total_s(self) -> float:
        """From the moment that the client asked."""
        return self.done_at - self.began_at
