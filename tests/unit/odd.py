"""Bodies with anything in one place: what no client means to send, and some will."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

_DEEP = "deep"
_TEXTS = st.text(st.characters(exclude_categories=()), max_size=4)
_NUMBERS = st.integers(-(2**65), 2**65) | st.floats()
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS | st.just(_DEEP),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXTS, inner, max_size=2),
    max_leaves=3,
)


@st.composite
def odd_bodies(draw: st.DrawFn, body: Any) -> bytes:
    """The JSON of ``body`` with one place, at any depth, left out or holding another value.

    Among these are numbers out of any range, halves of characters, and lists nested a few thousand deep.
    """
    odd = [copy.deepcopy(body)]
    *path, last = draw(st.sampled_from(list(_places(odd))))
    within: Any = odd
    for key in path:
        within = within[key]
    if draw(st.booleans()):
        within[last] = draw(_VALUES)
    else:
        del within[last]
    return json.dumps(odd)[1:-1].replace(f'"{_DEEP}"', "[" * 3000 + "]" * 3000).encode()


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from _places(each, (*path, key))
