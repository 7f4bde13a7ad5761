"""GGUF files: metadata and where the tensors lie. Their quantised blocks are decoded by the ``gguf`` package.

The header is read here and not by that package's reader, which makes several arrays of every string: five seconds for a
vocabulary of 150,000 tokens, where this takes a tenth of one. The layout is that of versions 2 and 3 of the format.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from engine.errors import BrokenModel, UnsupportedModel

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies: its shape (outermost dimension first), ggml's type and the bytes from ``offset`` on."""

    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int
    file: GGUFFile


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    """A file's metadata and, by name, its tensors' places; ``data`` is the whole file, mapped into memory."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorPlace]
    data: mmap.mmap

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the metadata; ``{arch}`` in ``key`` stands for the file's architecture."""
        return self.metadata.get(key.replace("{arch}", str(self.metadata.get("general.architecture"))), default)


@lru_cache(maxsize=2)
def open_gguf(path: Path) -> GGUFFile:
    """The file, with the tensors of all its parts where it is the first of several (``…-00001-of-00003.gguf``).

    Raises ``BrokenModel`` for a file that is missing, cut off or no GGUF, ``UnsupportedModel`` for versions and types
    that are unknown here.
    """
    first = _read(path)
    parts = int(first.get("split.count", 1))
    for number in range(2, parts + 1):
        other = re.sub(r"-\d{5}-of-(\d{5})\.gguf$", rf"-{number:05}-of-\1.gguf", path.name)
        if other == path.name:
            raise BrokenModel(f"{path} says that it is one of {parts} parts, but is not named like the first")
        first.tensors.update(_read(path.with_name(other)).tensors)
    return first


def _read(path: Path) -> GGUFFile:
    try:
        with path.open("rb") as file:
            # Writable, though nobody writes and the file would not see it: torch takes no buffer that is not.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise BrokenModel(f"{path}: {error}") from error
    if data[:4] != b"GGUF":
        raise BrokenModel(f"{path} is no GGUF file")
    try:
        return _header(path, data)
    except (struct.error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise BrokenModel(f"{path} is cut off or damaged in its header: {error}") from error


def _header(path: Path, data: mmap.mmap) -> GGUFFile:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # takes a quarter of a second; folders need none

    cursor = _Cursor(data, 4)
    version = cursor.number("I")
    if version not in (2, 3):
        raise UnsupportedModel(
            f"{path} is GGUF of version {version}; versions 2 and 3 of little-endian files can be read"
        )
    tensors, values = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(values):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("I"))
    heads = []
    for _ in range(tensors):
        name, dimensions = cursor.text(), cursor.number("I")
        shape = tuple(reversed([cursor.number("Q") for _ in range(dimensions)]))
        heads.append((name, shape, cursor.number("I"), cursor.number("Q")))
    alignment = int(metadata.get("general.alignment", 32)) or 1
    start = -(-cursor.at // alignment) * alignment
    found = GGUFFile(path, metadata, {}, data)
    for name, shape, kind, offset in heads:
        try:
            scheme = GGMLQuantizationType(kind)
        except ValueError as error:
            raise UnsupportedModel(f"{path}: {name} is of ggml's type {kind}, which is unknown here") from error
        block, size = GGML_QUANT_SIZES[scheme]
        nbytes = prod(shape) * size // block
        if start + offset + nbytes > len(data):
            raise BrokenModel(f"{path} is cut off: {name} ends at byte {start + offset + nbytes} of {len(data)}")
        found.tensors[name] = TensorPlace(shape, scheme.name, start + offset, nbytes, found)
    return found


class _Cursor:
    """Reads one value behind the other; ``struct.error`` past the end."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data = data
        self.at = at

    def number(self, kind: str) -> Any:
        return self._numbers(kind, 1)[0]

    def text(self) -> str:
        length = self.number("Q")
        if length > len(self.data) - self.at:
            raise struct.error(f"a text of {length} bytes at byte {self.at}")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self, kind: int) -> Any:
        """A scalar, a text or a list of either."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise struct.error(f"unknown type {kind} of a value at byte {self.at}")
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            return list(self._numbers(_SCALARS[inner], count))
        return [self.value(inner) for _ in range(count)]

    def _numbers(self, kind: str, count: int) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{count}{kind}")
        numbers = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return numbers
