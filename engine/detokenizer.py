"""Tokens to text as they come: no code point is split, and what may become a stop string is held back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from engine.tokenizer import Tokenizer


class Detokenizer:
    """One answer's text, token by token: all that ``feed`` and ``finish`` return is ``Tokenizer.decode``'s text."""

    def __init__(self, tokenizer: Tokenizer, hide_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.hidden if hide_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strips = tokenizer.strips

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete; bytes of a code point still under way are kept."""
        spell = self._tokenizer.token_bytes
        return self._shown(self._decoder.decode(b"".join(spell(one) for one in tokens if one not in self._hidden)))

    def finish(self) -> str:
        """What was kept, as U+FFFD: the answer ended within a code point."""
        return self._shown(self._decoder.decode(b"", final=True))

    def _shown(self, text: str) -> str:
        if self._strips and text:
            self._strips = False
            return text.removeprefix(" ")
        return text


class StopStrings:
    """Cuts an answer before the first stop string to be complete, wherever the pieces of text are cut."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What can be shown for certain; ``stopped`` is set once a stop string is complete: nothing is shown after."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        self._held += text
        found = [(place + len(stop), place) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)[1]], ""
            return shown
        keep = max(overlap(self._held, stop) for stop in self._stops)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """What was held back: the answer ended before it became a stop string."""
        shown, self._held = self._held, ""
        return shown


def overlap(text: str, mark: str) -> int:
    """How many of the text's last characters begin the mark without completing it."""
    longest = min(len(mark) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)
