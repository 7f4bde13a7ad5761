"""Answers in a form that was asked for: which tokens may come next, by llguidance.

llguidance builds no automaton ahead: a form is ready in about a millisecond, each mask takes a fraction of one, and the
work at each of both is limited, so that no expression or schema can hold up the others.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from
from numpy.typing import NDArray

from engine.errors import InvalidRequest, RequestFailed
from engine.request import Sequence, Structure

FORMS = 128
"""Forms kept ready, the latest used."""
SEQUENCES = 1024
"""Sequences whose place in their form is kept; the others read their output again."""
TEXT_LIMIT = 256 * 1024
"""Characters of a schema, an expression or a grammar."""
SPACES = r"[\x20\x0A\x0D\x09]{1,32}"
"""White space between JSON's signs: with no limit, a small model can write it until its tokens are spent."""
ERROR_LENGTH = 300


@dataclass(slots=True)
class Words:
    """What a form is matched against: each token's bytes, and how a text is split (llguidance asks by these names)."""

    tokens: Listed[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    encode: Callable[[str], list[int]]
    bos_token_id: int | None = None
    is_tokenizer_wrapper: bool = True

    def __call__(self, text: str | bytes) -> list[int]:
        return self.encode(text if isinstance(text, str) else text.decode(errors="replace"))


@dataclass(slots=True)
class _Place:
    """How far a sequence is in its form: ``read`` tokens of its output; ``ended`` once it brought an end token."""

    sequence: Sequence
    matcher: LLMatcher
    read: int = 0
    ended: bool = False


class Structures:
    """The forms of a model's answers. ``compile`` may be called from any thread, ``masks`` from one.

    ``tokens`` are all tokens' bytes by id; ``special_ids`` those that are no text; ``encode`` splits a text.
    """

    def __init__(
        self,
        tokens: Listed[bytes],
        eos_ids: Collection[int],
        special_ids: Collection[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self._eos_ids = sorted(eos_ids)
        words = Words(tokens, sorted({*special_ids, *eos_ids}), self._eos_ids[0], encode)
        self._tokenizer = LLTokenizer(words, n_vocab=len(tokens), eos_token=self._eos_ids)  # type: ignore[arg-type]
        self._size = len(tokens)
        self._limits = LLParserLimits(verbose_errors=False)
        self._form = lru_cache(FORMS)(self._made)
        self._places: OrderedDict[int, _Place] = OrderedDict()

    def compile(self, structure: Structure, field: str = "response_format") -> LLMatcher:
        """A matcher at the form's start; made now if it is not ready. Takes up to a second for the largest forms.

        Raises ``InvalidRequest`` that names ``field`` where the form is no form, or more than is supported.
        """
        if len(structure.text) > TEXT_LIMIT:
            raise InvalidRequest(f"it has {len(structure.text)} characters, the limit is {TEXT_LIMIT}", field)
        try:
            return self._form(structure).deep_copy()
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"not a form for an answer: {str(error)[:ERROR_LENGTH].strip()}", field) from error

    def _made(self, structure: Structure) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, _grammar(structure), log_level=0, limits=self._limits)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def masks(self, sequence: Sequence, vocabulary: int) -> NDArray[np.bool_]:
        """What may come behind the sequence's tokens, and behind each of its drafts: [1 + drafts, vocabulary].

        Behind a draft that may not come itself, anything may. Raises ``RequestFailed`` where the form cannot go on.
        """
        place = self._place(sequence)
        masks = np.zeros((1 + len(sequence.drafts), vocabulary), np.bool_)
        self._fill(masks[0], place.matcher, place.ended)
        consumed, ended = 0, place.ended
        for position, draft in enumerate(sequence.drafts):
            if not (draft < vocabulary and masks[position, draft]):
                masks[position + 1 :] = True
                break
            ended = self._read(place.matcher, draft, ended)
            consumed += not ended
            self._fill(masks[position + 1], place.matcher, ended)
        if consumed and not place.matcher.rollback(consumed):
            raise RequestFailed("the answer's form could not be taken back to where it was")
        return masks

    def _place(self, sequence: Sequence) -> _Place:
        output = sequence.output
        place = self._places.pop(sequence.id, None)
        if place is None or place.sequence is not sequence or place.read > len(output):
            if sequence.sampling.structure is None:
                raise RequestFailed("no form was asked for")
            place = _Place(sequence, self.compile(sequence.sampling.structure))
        for token in output[place.read :]:
            place.ended = self._read(place.matcher, token, place.ended)
        place.read = len(output)
        self._places[sequence.id] = place
        if len(self._places) > SEQUENCES:
            self._places.popitem(last=False)
        return place

    def _read(self, matcher: LLMatcher, token: int, ended: bool) -> bool:
        """Goes on in the form by a token, unless the answer has ended; True once it has."""
        ended = ended or token in self._eos_ids
        if not ended and not matcher.consume_token(token):
            raise RequestFailed(f"the answer left its form: {matcher.get_error()[:ERROR_LENGTH]}")
        return ended

    def _fill(self, mask: NDArray[np.bool_], matcher: LLMatcher, ended: bool) -> None:
        """Write what may come next into mask [vocabulary]; behind the end only an end token."""
        if ended or (matcher.is_stopped() and not matcher.is_error()):
            mask[[token for token in self._eos_ids if token < len(mask)]] = True
            return
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8) if not matcher.is_error() else None
        if bits is None or matcher.is_error():
            raise RequestFailed(f"the answer's form takes too much work: {matcher.get_error()[:ERROR_LENGTH]}")
        allowed = np.unpackbits(bits, bitorder="little")[: min(self._size, len(mask))]
        mask[: len(allowed)] = allowed.view(np.bool_)


def _grammar(structure: Structure) -> str:
    """The form in llguidance's words. Raises ``ValueError`` where the text does not even read as what it is."""
    if structure.kind == "regex":
        return LLMatcher.grammar_from_regex(structure.text)
    if structure.kind == "grammar":
        return grammar_from("grammar", structure.text)
    schema = json.loads(structure.text) if structure.kind == "json_schema" else {"type": "object"}
    if not isinstance(schema, dict | bool):
        raise ValueError("a JSON schema is an object")
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_pattern": SPACES})
