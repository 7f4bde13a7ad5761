"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable

_UNITS = ("B", "KiB", "MiB", "GiB")


def seconds(value: float) -> str:
    """Return ``12 ms``, ``0.31 s``, ``4.2 s``, ``73 s``."""
    if 0.0 < value < 0.0005:
        return "under 1 ms"
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s" if value < 20 else f"{value:.0f} s"


def count(number: float, what: str) -> str:
    """Return ``1 token``, ``4,000 tokens``."""
    return f"{number:,.0f} {what}{'' if round(number) == 1 else 's'}"


def size(value: float) -> str:
    """Return ``12 MiB``, ``3.1 GiB``."""
    number, unit = float(value), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f} {_UNITS[unit]}" if number < 10 and unit else f"{number:.0f} {_UNITS[unit]}"


def share(value: float) -> str:
    """Return ``43 %``."""
    return f"{value * 100:.0f} %"


def listed(words: Iterable[str]) -> str:
    """Return ``a, b and c``."""
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def sentence(words: str) -> str:
    """Return words that begin with a capital and end with a full stop."""
    words = words.strip()
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith(('.', '!', '?')) else '.'}"
