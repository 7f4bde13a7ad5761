"""Model names and selectors: what ``NAME@SELECTOR`` asks for, and which deployments that picks."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from enum import Enum
from functools import lru_cache

from policies.types import Deployment, Precision

_PRECISION_SPELLINGS = {
    "f32": Precision.FP32,
    "float32": Precision.FP32,
    "f16": Precision.FP16,
    "float16": Precision.FP16,
    "bfloat16": Precision.BF16,
}
_ENGINE_SPELLINGS = {"llama": "llamacpp", "llamaserver": "llamacpp"}
_APART = str.maketrans("", "", ".-_ ")


class Asks(Enum):
    """What a selector is about; a precision that was asked for is not second-guessed."""

    NOTHING = "nothing"
    PRECISION = "precision"
    LEAST_PRECISION = "least precision"
    NAME = "name"
    """An engine kind, an endpoint, a deployment id or a quantisation scheme."""


def parse_model(name: str) -> tuple[str, str]:
    """Split ``"smollm2@int8+"`` into ``("smollm2", "int8+")``; the selector is ``""`` for a bare name.

    Without knowledge of the names that exist the last ``@`` is the one that counts; see ``resolve_model``.
    """
    model, at, selector = name.rpartition("@")
    return (model, selector) if at and model else (name, "")


def resolve_model(name: str, known: Collection[str]) -> tuple[str, str]:
    """Split a name as ``parse_model`` does, but never inside of a known model's name, which may hold an ``@``.

    The longest known name wins. A name of which no part is known is split at its last ``@``.
    """
    if name in known:
        return name, ""
    end = name.rfind("@")
    while end > 0:
        if name[:end] in known:
            return name[:end], name[end + 1 :]
        end = name.rfind("@", 0, end)
    return parse_model(name)


def near_names(name: str, known: Collection[str], limit: int = 3) -> list[str]:
    """Return up to ``limit`` known names that ``name`` was probably meant to be, best first."""
    asked = name.casefold()
    folded = {each.casefold(): each for each in sorted(known)}
    near = difflib.get_close_matches(asked, folded, n=limit, cutoff=0.6)
    near += [each for each in folded if each not in near and len(asked) > 2 and (asked in each or each in asked)]
    return [folded[each] for each in near[:limit]]


def selects(selector: str, deployment: Deployment) -> bool:
    """Return whether a selector picks a deployment; the empty one picks all.

    A selector is a precision (``bf16``), a least precision (``int8+``: that many bits or more), an engine kind
    (``vllm``, ``llama.cpp``), a deployment id, an endpoint's name or a scheme (``Q4_K_M``). Capital letters matter in
    ids and endpoint names only.
    """
    asks, precision = _meaning(selector)
    if asks is Asks.NOTHING:
        return True
    if asks is Asks.LEAST_PRECISION and deployment.precision.bits >= precision.bits:
        return True
    if asks is Asks.PRECISION and deployment.precision is precision:
        return True
    return (
        selector in (deployment.id, deployment.endpoint)
        or _engine_kind(selector) == _engine_kind(deployment.engine)
        or (deployment.scheme != "" and selector.casefold() == deployment.scheme.casefold())
    )


def asks_for_precision(selector: str, deployment: Deployment) -> bool:
    """Return whether a selector that picks ``deployment`` names its precision, its scheme or the deployment itself.

    Then its precision is the caller's will. An engine kind or an endpoint says nothing about precision.
    """
    asks, _ = _meaning(selector)
    if asks in (Asks.PRECISION, Asks.LEAST_PRECISION):
        return True
    return asks is Asks.NAME and (
        selector == deployment.id or (deployment.scheme != "" and selector.casefold() == deployment.scheme.casefold())
    )


def describe_selector(selector: str) -> str:
    """Complete "the only deployment …" for a person: ``"with int8 or better"``, ``"with bf16"``, ``"for @vllm"``."""
    asks, precision = _meaning(selector)
    if asks is Asks.LEAST_PRECISION:
        return f"with {precision} or better"
    if asks is Asks.PRECISION:
        return f"with {precision}"
    return f"for @{selector}"


def mismatch(selector: str, deployment: Deployment) -> str:
    """Say why a selector does not pick a deployment, completing "DEPLOYMENT: …"."""
    asks, precision = _meaning(selector)
    runs = "has an unknown precision" if deployment.precision is Precision.UNKNOWN else f"runs {deployment.precision}"
    if asks is Asks.LEAST_PRECISION:
        return f"{runs}, not {precision} or better"
    if asks is Asks.PRECISION:
        return f"{runs}, not {precision}"
    return f"not meant by @{selector}"


@lru_cache(maxsize=512)
def _meaning(selector: str) -> tuple[Asks, Precision]:
    """Return what a selector asks for, and the precision when it is about one."""
    if not selector:
        return Asks.NOTHING, Precision.UNKNOWN
    folded = selector.casefold()
    least = _precision(folded[:-1]) if folded.endswith("+") else None
    if least is not None and least is not Precision.UNKNOWN:
        return Asks.LEAST_PRECISION, least
    exact = _precision(folded)
    return (Asks.NAME, Precision.UNKNOWN) if exact is None else (Asks.PRECISION, exact)


def _precision(folded: str) -> Precision | None:
    if folded in _PRECISION_SPELLINGS:
        return _PRECISION_SPELLINGS[folded]
    try:
        return Precision(folded)
    except ValueError:
        return None


@lru_cache(maxsize=512)
def _engine_kind(name: str) -> str:
    joined = name.casefold().translate(_APART)
    return _ENGINE_SPELLINGS.get(joined, joined)
