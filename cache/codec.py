"""Entries as bytes for a store that others can read: versioned, compressed, and encrypted when there is a key.

========  =====================================================================
bytes     meaning
========  =====================================================================
0–3       ``PLC`` and the version of this form, 1
4         flags: 1 compressed (zstd), 2 encrypted (AES-256-GCM)
5–8       when it was made, Unix seconds; readable without the rest
9–        clear: CRC-32 of what follows, and that; encrypted: length and
          bytes of the key's id, a nonce of 12 bytes, the ciphertext
========  =====================================================================

What is inside is msgpack. An encrypted value is bound to its name and its first 9 bytes: one that was moved to another
name, and with it to another tenant, cannot be read.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from cache.entry import Entry

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

COMPRESS_FROM: Final = 1024
MAX_BYTES: Final = 64 << 20
"""What a value may be unpacked to."""

_HEAD: Final = struct.Struct(">3sBBI")
_CRC: Final = struct.Struct(">I")
_MAGIC: Final = b"PLC"
_VERSION: Final = 1
_COMPRESSED: Final = 1
_ENCRYPTED: Final = 2
_NONCE: Final = 12
HEAD_BYTES: Final = _HEAD.size


class Unreadable(ValueError):
    """These bytes are no value of ours, of another version, damaged, or under a key that is not known."""


class Codec:
    """Packs and unpacks. With ``keys`` (by id; 32 bytes each) the first one encrypts, and all of them can be read.

    A value that is not encrypted is refused then: whoever can write to the store could have put it there.
    """

    def __init__(self, keys: Mapping[str, bytes] | None = None) -> None:
        self._ciphers: dict[bytes, AESGCM] = {}
        if keys:
            from cryptography.hazmat.primitives.ciphers import aead

            self._ciphers = {id_.encode(): aead.AESGCM(key) for id_, key in keys.items()}
        import zstandard  # takes a while, and only what is shared is packed

        self._compressor = zstandard.ZstdCompressor(level=1)
        self._decompressor = zstandard.ZstdDecompressor()
        self._size_of = zstandard.frame_content_size
        self._fault = zstandard.ZstdError

    def pack(self, name: str, entry: Entry) -> bytes:
        """Return an entry as the bytes that are kept under ``name``."""
        return self.seal(name, _encoder.encode(entry), entry.created)

    def unpack(self, name: str, data: bytes) -> Entry:
        """Return the entry again. Raises ``Unreadable``."""
        try:
            return _decoder.decode(self.open(name, data))
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreadable(f"is no entry: {error}") from None

    def seal(self, name: str, inside: bytes, created: float) -> bytes:
        """Return any bytes in the form above."""
        flags = 0
        if len(inside) >= COMPRESS_FROM:
            inside = self._compressor.compress(inside)
            flags |= _COMPRESSED
        if not self._ciphers:
            return _HEAD.pack(_MAGIC, _VERSION, flags, int(created)) + _CRC.pack(zlib.crc32(inside)) + inside
        id_, cipher = next(iter(self._ciphers.items()))
        head = _HEAD.pack(_MAGIC, _VERSION, flags | _ENCRYPTED, int(created))
        nonce = os.urandom(_NONCE)
        sealed = cipher.encrypt(nonce, inside, head + name.encode())
        return head + bytes([len(id_)]) + id_ + nonce + sealed

    def open(self, name: str, data: bytes) -> bytes:
        """Return what ``seal`` was given. Raises ``Unreadable``."""
        flags, inside = _split(data)
        if flags & _ENCRYPTED:
            inside = self._decrypt(name, data[:HEAD_BYTES], inside)
        elif self._ciphers:
            raise Unreadable("is not encrypted, and entries here are")
        else:
            inside = _checked(inside)
        return self._decompress(inside) if flags & _COMPRESSED else inside

    def _decrypt(self, name: str, head: bytes, rest: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        length = rest[0] if rest else 0
        id_, nonce, sealed = rest[1 : 1 + length], rest[1 + length : 1 + length + _NONCE], rest[1 + length + _NONCE :]
        cipher = self._ciphers.get(id_)
        if cipher is None:
            raise Unreadable("is encrypted under a key that is not configured")
        try:
            return cipher.decrypt(nonce, sealed, head + name.encode())
        except (InvalidTag, ValueError):
            raise Unreadable("was changed, or belongs to another name") from None

    def _decompress(self, data: bytes) -> bytes:
        try:
            if not 0 <= self._size_of(data) <= MAX_BYTES:
                raise Unreadable("does not say how large it is, or is too large")
            return self._decompressor.decompress(data)
        except self._fault as error:
            raise Unreadable(f"cannot be decompressed: {error}") from None


def created_at(head: bytes) -> int:
    """Return when a value was made, from its first ``HEAD_BYTES`` bytes. Raises ``Unreadable``."""
    if len(head) < HEAD_BYTES:
        raise Unreadable("is too short")
    magic, version, _, created = _HEAD.unpack_from(head)
    if magic != _MAGIC or version != _VERSION:
        raise Unreadable("is not ours, or of another version")
    return int(created)


def _split(data: bytes) -> tuple[int, bytes]:
    created_at(data[:HEAD_BYTES])
    flags = data[4]
    if flags & ~(_COMPRESSED | _ENCRYPTED):
        raise Unreadable("has flags that are not known")
    return flags, data[HEAD_BYTES:]


def _checked(rest: bytes) -> bytes:
    inside = rest[_CRC.size :]
    if len(rest) < _CRC.size or _CRC.unpack_from(rest)[0] != zlib.crc32(inside):
        raise Unreadable("is damaged")
    return inside


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)
