"""Which token comes next, at each position whose logits a step brought.

A choice depends on its own row of logits, on its sequence, and on noise made from (the sequence's seed, the position):
on nothing else in the batch. Drafts are verified by that: a draft is accepted while it equals the choice, so a sequence
gets the same tokens with drafts as without. Probabilities are summed as integers, because a sum of floats depends on
how it is split among threads.
"""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import EngineError, Poisoned
from engine.kernels.sampling import survey
from engine.request import Result, Sampling, Sequence, TokenLogprobs
from engine.structured import Structures

WHOLE = 2.0**48
"""A probability of 1 as an integer: the sum of a whole vocabulary stays far below 2^63."""
CANDIDATES = 256
"""Tokens that are sorted first on a CPU to find a cut; nearly always they hold more than the probability asked for."""
SMALLEST_TEMPERATURE = 1e-30


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sequence whose logits are the rows ``first`` to ``first + len(sequence.drafts)``, in the order of positions."""

    sequence: Sequence
    first: int


@dataclass(frozen=True, slots=True)
class _Place:
    """One row: the position behind the sequence's tokens and the first ``drafts`` of its drafts."""

    row: int
    sequence: Sequence
    drafts: int


@dataclass(frozen=True, slots=True)
class _Logprobs:
    """Log-probabilities of the rows in ``index`` (row of the logits: row here): chosen [R], best [R, n]."""

    index: dict[int, int]
    chosen: Tensor
    values: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices that may still be under way on the device; ``results`` waits for them."""

    wanted: tuple[Wanted, ...]
    drafts: tuple[tuple[int, ...], ...]
    tokens: Tensor
    sums: Tensor
    logprobs: _Logprobs | None
    errors: dict[int, EngineError]

    def results(self) -> list[Result]:
        """One result a sequence, in the order they were wanted; numbers that are not finite become ``Poisoned``."""
        tokens, finite = self.tokens.tolist(), torch.isfinite(self.sums).tolist()
        logprobs = self.logprobs
        read = (logprobs.chosen.tolist(), logprobs.values.tolist(), logprobs.tokens.tolist()) if logprobs else None
        results = []
        for index, (wanted, drafts) in enumerate(zip(self.wanted, self.drafts, strict=True)):
            accepted = 0
            while accepted < len(drafts) and drafts[accepted] == tokens[wanted.first + accepted]:
                accepted += 1
            rows = range(wanted.first, wanted.first + accepted + 1)
            error = self.errors.get(index)
            if error is None and not all(finite[row] for row in rows):
                error = Poisoned("the model's numbers are no longer finite for this request")
            if error is not None:
                results.append(Result(wanted.sequence, error=error))
                continue
            said: tuple[TokenLogprobs, ...] = ()
            alternatives = wanted.sequence.sampling.logprobs
            if logprobs and read and alternatives is not None:
                at = [logprobs.index[row] for row in rows]
                best = [tuple(zip(read[2][i], read[1][i], strict=True))[:alternatives] for i in at]
                said = tuple(TokenLogprobs(read[0][i], rivals) for i, rivals in zip(at, best, strict=True))
            results.append(Result(wanted.sequence, tuple(tokens[row] for row in rows), said))
        return results


class Sampler:
    """Chooses tokens for sequences of a model with these end tokens; ``structures`` masks those that have a form."""

    def __init__(self, eos_ids: Listed[int], structures: Structures | None = None) -> None:
        self._eos_ids = tuple(eos_ids)
        self._structures = structures

    def sample(self, logits: Tensor, wanted: Listed[Wanted]) -> list[Result]:
        """``start`` and wait: logits [N, vocabulary], in any float type; one result a sequence, in that order."""
        return self.start(logits, wanted).results()

    def start(self, logits: Tensor, wanted: Listed[Wanted]) -> Choices:
        """Choose at every wanted row of logits [N, vocabulary] without waiting for a device where that is possible."""
        drafts = tuple(tuple(each.sequence.drafts) for each in wanted)
        places = [
            _Place(each.first + count, each.sequence, count)
            for each, proposed in zip(wanted, drafts, strict=True)
            for count in range(len(proposed) + 1)
        ]
        errors: dict[int, EngineError] = {}
        masks: dict[int, Tensor] = {}
        for index, each in enumerate(wanted):
            if each.sequence.sampling.structure is not None and self._structures is not None:
                try:
                    mask = self._structures.masks(each.sequence, logits.shape[1])
                except EngineError as error:
                    errors[index] = error
                else:
                    masks.update(zip(range(each.first, logits.shape[0]), torch.from_numpy(mask), strict=False))
        tokens, sums = _survey(logits)
        special = [p for p in places if p.row in masks or p.sequence.sampling.temperature > 0 or _edits(p.sequence)]
        if special:
            rows = torch.tensor([place.row for place in special], device=logits.device)
            scores = logits.index_select(0, rows).float()
            for score, place in zip(scores, special, strict=True):
                if place.row in masks or _edits(place.sequence):
                    self._edit(score, place, masks.get(place.row))
            tokens[rows] = _choose(scores, special)
        return Choices(
            tuple(wanted),
            drafts,
            tokens,
            sums,
            _logprobs(logits, tokens, places),
            errors,
        )

    def _edit(self, score: Tensor, place: _Place, mask: Tensor | None) -> None:
        """Apply penalties, biases and what may not come to a row [vocabulary] of its own, in place."""
        sequence, sampling = place.sequence, place.sequence.sampling
        drafted = sequence.drafts[: place.drafts]

        def indices(tokens: Listed[int]) -> Tensor:
            return torch.tensor([t for t in tokens if t < len(score)], dtype=torch.long, device=score.device)

        if sampling.repetition_penalty != 1.0:
            seen = indices([*{*sequence.tokens, *drafted}])
            values = score[seen]
            score[seen] = torch.where(
                values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
            )
        if sampling.frequency_penalty or sampling.presence_penalty:
            said, counts = torch.unique(indices([*sequence.output, *drafted]), return_counts=True)
            score[said] -= sampling.frequency_penalty * counts + sampling.presence_penalty
        for token, bias in sampling.logit_bias:
            if token < len(score):
                score[token] += bias
        if mask is not None:
            score.masked_fill_(~mask.to(score.device), float("-inf"))
        if sequence.generated + place.drafts < sampling.min_tokens:
            ends = {*self._eos_ids, *sampling.stop_token_ids}
            if mask is None or int(mask.sum()) > int(mask[indices([*ends]).cpu()].sum()):
                score[indices([*ends])] = float("-inf")  # unless the form has ended, and nothing else may come


def _survey(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's best token, and a sum that is finite when the row is sound."""
    if logits.is_cuda:
        return survey(logits)
    return _best(logits), logits.sum(dim=1, dtype=torch.float32)


def _best(scores: Tensor) -> Tensor:
    """The first of the best of each row; several times as fast as ``argmax`` on a CPU."""
    return scores.max(dim=1).indices


def _edits(sequence: Sequence) -> bool:
    """Whether the sampling changes logits before a choice."""
    sampling = sequence.sampling
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty
        or sampling.presence_penalty
        or sampling.logit_bias
        or sequence.generated < sampling.min_tokens
    )


def _choose(scores: Tensor, places: Listed[_Place]) -> Tensor:
    """The best token of rows that are greedy, a drawn one of the others: [R] for scores [R, vocabulary]."""
    tokens = _best(scores)
    drawn = [index for index, place in enumerate(places) if place.sequence.sampling.temperature > 0]
    if drawn:
        rows = torch.tensor(drawn, device=scores.device)
        mine = [places[index] for index in drawn]
        noise = [uniform(place.sequence.seed, len(place.sequence.tokens) + place.drafts) for place in mine]
        chosen = scores if len(drawn) == len(places) else scores.index_select(0, rows)
        tokens[rows] = draw(chosen, [place.sequence.sampling for place in mine], noise)
    return tokens


def draw(scores: Tensor, settings: Listed[Sampling], noise: Listed[float]) -> Tensor:
    """A token for each row of scores [R, vocabulary] float32, by the inverse of its distribution function at noise.

    Temperature first, then top-k, then top-p of what that left, then min-p; tokens as probable as the last that is kept
    are kept, too. ``noise`` is in [0, 1), one a row. Returns [R].
    """

    def column(values: Listed[float], kind: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(values, dtype=kind, device=scores.device)[:, None]

    temperature = column([max(each.temperature, SMALLEST_TEMPERATURE) for each in settings], torch.float32)
    probabilities = torch.softmax((scores - scores.amax(dim=1, keepdim=True)) / temperature, dim=1)
    weights = (probabilities * WHOLE).long()
    cut = torch.zeros(len(settings), 1, dtype=torch.long, device=scores.device)
    limited = [index for index, each in enumerate(settings) if each.top_k > 0 or each.top_p < 1.0]
    if limited:
        rows = torch.tensor(limited, device=scores.device)
        cut[rows] = _cut(probabilities[rows], weights[rows].sum(dim=1, keepdim=True), [settings[i] for i in limited])
    if any(each.min_p > 0 for each in settings):
        floor = column([each.min_p for each in settings]) * weights.amax(dim=1, keepdim=True)
        cut = torch.maximum(cut, floor.ceil().long())
    reached = weights.masked_fill_(weights < cut, 0).cumsum(dim=1)
    total = reached[:, -1:].contiguous()
    target = torch.minimum((column(noise) * total).long(), total - 1)
    found = torch.searchsorted(reached, target, right=True)
    return found.clamp_(0, scores.shape[1] - 1)[:, 0]  # a row that is not finite may point anywhere


def _cut(probabilities: Tensor, total: Tensor, settings: Listed[Sampling]) -> Tensor:
    """The least weight [R, 1] that top-k and top-p keep of probabilities [R, vocabulary] with weights of sum total."""
    vocabulary = probabilities.shape[1]
    counts = [min(each.top_k, vocabulary) for each in settings]
    last = torch.tensor(counts, device=total.device)[:, None] - 1
    share = torch.tensor([each.top_p for each in settings], dtype=torch.float64, device=total.device)[:, None]
    width = min(vocabulary, max(CANDIDATES, *counts)) if total.device.type == "cpu" else vocabulary
    while True:
        best = (probabilities.topk(width, dim=1).values * WHOLE).long()
        held = best.cumsum(dim=1)
        mass = torch.where(last < 0, total, held.gather(1, last.clamp(min=0)))
        goal = (share * mass).ceil().long().clamp(min=1)
        if width == vocabulary or bool((held[:, -1:] >= goal).all()):
            return best.gather(1, torch.searchsorted(held, goal).clamp_(max=width - 1))
        width = min(vocabulary, width * 8)


def _logprobs(logits: Tensor, tokens: Tensor, places: Listed[_Place]) -> _Logprobs | None:
    """Of the rows of sequences that asked for them: the model's own, before penalties, biases and masks."""
    asked = [place for place in places if place.sequence.sampling.logprobs is not None]
    if not asked:
        return None
    rows = torch.tensor([place.row for place in asked], device=logits.device)
    values = torch.log_softmax(logits.index_select(0, rows).float(), dim=1)
    count = min(max(place.sequence.sampling.logprobs or 0 for place in asked), logits.shape[1])
    best = values.topk(count, dim=1)
    chosen = values.gather(1, tokens[rows][:, None])[:, 0]
    return _Logprobs({place.row: index for index, place in enumerate(asked)}, chosen, best.values, best.indices)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from a seed and a position: two rounds of the finaliser of SplitMix64 (Steele et al. 2014)."""
    return (_mixed(_mixed(seed) + position * 0x9E3779B97F4A7C15) >> 11) / 2.0**53


def _mixed(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)
