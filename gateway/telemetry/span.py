"""Spans as plain values, and how a trace looks as a tree of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

AttributeValue = str | bool | int | float | tuple[str, ...] | tuple[int, ...] | tuple[float, ...]
Attributes = dict[str, AttributeValue]


class Kind(Enum):
    """On whose side of a call a span is."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(slots=True)
class Event:
    """A moment of a span, in nanoseconds since 1970."""

    name: str
    at_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class Link:
    """Another span that belongs to this one without being its parent."""

    trace_id: str
    span_id: str
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class Span:
    """One step of a request. Times are nanoseconds since 1970; ids are hexadecimal, ``parent_id`` "" without a parent.

    ``failed`` with ``why`` is its status; without it there is none, as OpenTelemetry wants it.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    kind: Kind = Kind.INTERNAL
    attributes: Attributes = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    failed: bool = False
    why: str = ""


def tree(spans: Sequence[Span]) -> str:
    """Return a trace as lines: who began when within it, how long it took, and what is known of it."""
    ids = {span.span_id for span in spans}
    children: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda each: each.start_ns):
        children.setdefault(span.parent_id if span.parent_id in ids else "", []).append(span)
    lines: list[str] = []
    for root in children.get("", ()):
        parent = f", called by span {root.parent_id}" if root.parent_id else ""
        lines.append(f"trace {root.trace_id}{parent}")
        _write(root, "", "", root.start_ns, children, lines)
    return "\n".join(lines)


def _write(span: Span, lead: str, below: str, zero_ns: int, children: dict[str, list[Span]], lines: list[str]) -> None:
    status = f"  FAILED {span.why}".rstrip() if span.failed else ""
    begun, took = (span.start_ns - zero_ns) / 1e6, (span.end_ns - span.start_ns) / 1e6
    lines.append(f"{lead}{span.name} ({span.kind.value})  at {begun:.1f} ms, took {took:.1f} ms{status}")
    members = children.get(span.span_id, [])
    bar = "│  " if members else "   "
    for key, value in span.attributes.items():
        lines.append(f"{below}{bar}{key} = {_text(value)}")
    for event in span.events:
        told = "".join(f" {key}={_text(value)}" for key, value in event.attributes.items())
        lines.append(f"{below}{bar}* {event.name} at {(event.at_ns - zero_ns) / 1e6:.1f} ms{told}")
    for link in span.links:
        lines.append(f"{below}{bar}→ span {link.span_id} of trace {link.trace_id}")
    for member in members:
        is_last = member is members[-1]
        _write(
            member,
            below + ("└─ " if is_last else "├─ "),
            below + ("   " if is_last else "│  "),
            zero_ns,
            children,
            lines,
        )


def _text(value: AttributeValue) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
