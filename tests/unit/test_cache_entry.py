"""Entries: what is packed comes back, what is not ours does not, and nothing moves between names."""

from __future__ import annotations

import os
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.codec import HEAD_BYTES, MAX_BYTES, Codec, Unreadable, created_at
from cache.entry import Entry
from cache.memory import MemoryStore

counts = st.none() | st.integers(0, 2**40)
entries = st.builds(
    Entry,
    model=st.text(),
    deployment=st.text(),
    engine=st.text(),
    precision=st.text(),
    created=st.floats(0, 2**31),
    expires=st.floats(0, 2**33),
    streamed=st.booleans(),
    body=st.binary(max_size=4000),
    cuts=st.lists(st.integers(0, 2**31)).map(tuple),
    pace_ms=st.lists(st.integers(0, 2**31)).map(tuple),
    prompt_tokens=counts,
    output_tokens=counts,
    finish_reason=st.none() | st.text(),
    took_s=st.floats(0, 1e6),
    model_name=st.text(),
    whole=st.binary(max_size=100),
)
ENTRY = Entry("m", "d", "llamacpp", "bf16", 1000.0, 2000.0, True, b"data: 1\n\ndata: 2\n\n" * 100, (9, 1800), (0, 20))


def key() -> bytes:
    return os.urandom(32)


class TestPacking:
    @given(entries)
    def test_what_is_packed_comes_back(self, entry: Entry) -> None:
        for codec in (Codec(), Codec({"a": b"k" * 32})):
            assert codec.unpack("name", codec.pack("name", entry)) == entry

    def test_long_ones_are_compressed_and_the_age_can_be_read_without_the_rest(self) -> None:
        data = Codec().pack("name", ENTRY)
        assert len(data) < len(ENTRY.body) / 4
        assert created_at(data[:HEAD_BYTES]) == 1000

    @given(st.binary(max_size=200))
    def test_anything_else_is_unreadable_never_an_error(self, data: bytes) -> None:
        for codec in (Codec(), Codec({"a": b"k" * 32})):
            with pytest.raises(Unreadable):
                codec.unpack("name", data)

    @given(st.integers(0, 200), st.integers(1, 255), st.booleans())
    def test_one_changed_byte_is_noticed(self, at: int, change: int, encrypted: bool) -> None:
        codec = Codec({"a": b"k" * 32} if encrypted else None)
        data = bytearray(codec.pack("name", ENTRY))
        at %= len(data)
        data[at] ^= change
        if 5 <= at < HEAD_BYTES and not encrypted:
            return  # when it was made: no answer depends on it
        with pytest.raises(Unreadable):
            codec.unpack("name", bytes(data))

    def test_one_cut_short_is_unreadable(self) -> None:
        data = Codec().pack("name", ENTRY)
        for end in range(len(data)):
            with pytest.raises(Unreadable):
                Codec().unpack("name", data[:end])

    def test_another_version_is_unreadable(self) -> None:
        data = Codec().pack("name", ENTRY)
        with pytest.raises(Unreadable, match="version"):
            Codec().unpack("name", data[:3] + b"\x02" + data[4:])

    def test_an_older_form_without_the_newest_field_is_readable(self) -> None:
        older = msgspec.msgpack.encode(list(msgspec.structs.astuple(ENTRY))[:-1])
        assert Codec().unpack("n", Codec().seal("n", older, 1.0)).body == ENTRY.body

    def test_a_value_that_would_unpack_to_too_much_is_refused(self) -> None:
        data = Codec().seal("n", bytes(MAX_BYTES + 1), 1.0)
        assert len(data) < 100_000
        with pytest.raises(Unreadable, match="large"):
            Codec().unpack("n", data)


class TestEncryption:
    def test_nothing_of_the_answer_is_legible(self) -> None:
        entry = msgspec.structs.replace(ENTRY, body=b"the secret answer")
        assert b"secret" in Codec().pack("name", entry)
        assert b"secret" not in Codec({"a": key()}).pack("name", entry)

    def test_an_entry_under_another_name_cannot_be_read(self) -> None:
        codec = Codec({"a": key()})
        with pytest.raises(Unreadable, match="another name"):
            codec.unpack("bob", codec.pack("ann", ENTRY))

    def test_old_keys_still_read_and_the_first_one_writes(self) -> None:
        old, new = key(), key()
        before, during, after = Codec({"1": old}), Codec({"2": new, "1": old}), Codec({"2": new})
        assert during.unpack("n", before.pack("n", ENTRY)) == ENTRY
        assert after.unpack("n", during.pack("n", ENTRY)) == ENTRY
        with pytest.raises(Unreadable, match="key that is not configured"):
            after.unpack("n", before.pack("n", ENTRY))

    def test_the_same_id_with_another_key_is_unreadable(self) -> None:
        with pytest.raises(Unreadable):
            Codec({"a": key()}).unpack("n", Codec({"a": key()}).pack("n", ENTRY))

    def test_a_clear_value_is_not_believed_where_entries_are_encrypted(self) -> None:
        with pytest.raises(Unreadable, match="not encrypted"):
            Codec({"a": key()}).unpack("n", Codec().pack("n", ENTRY))

    def test_the_head_cannot_be_changed(self) -> None:
        codec = Codec({"a": key()})
        data = codec.pack("n", ENTRY)
        with pytest.raises(Unreadable):
            codec.unpack("n", data[:5] + struct.pack(">I", 2000) + data[9:])


class TestMemory:
    def store(self, max_bytes: int = 1_000_000) -> MemoryStore:
        self.now = 1000.0
        return MemoryStore(max_bytes, lambda: self.now)

    def test_an_expired_entry_is_gone(self) -> None:
        store = self.store()
        store.put("a", ENTRY)
        assert store.get("a") is ENTRY
        self.now = ENTRY.expires
        assert store.get("a") is None
        assert (len(store), store.bytes) == (0, 0)

    def test_the_least_recently_used_go_when_the_bytes_run_out(self) -> None:
        store = self.store(3 * ENTRY.size + 10)
        for name in "abc":
            store.put(name, ENTRY)
        store.get("a")
        store.put("d", ENTRY)
        assert [name for name in "abcd" if store.get(name)] == ["a", "c", "d"]

    @given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3000))))
    def test_it_never_holds_more_than_its_bytes(self, puts: list[tuple[str, int]]) -> None:
        store = self.store(4000)
        for name, size in puts:
            store.put(name, msgspec.structs.replace(ENTRY, body=bytes(size), cuts=()))
            assert 0 <= store.bytes <= 4000
        for name in "abcdef":
            store.drop(name)
        assert store.bytes == 0

    def test_clearing_takes_a_pattern_and_an_age(self) -> None:
        store = self.store()
        store.put("x:1", ENTRY)
        store.put("x:2", msgspec.structs.replace(ENTRY, created=900.0))
        store.put("y:1", ENTRY)
        assert store.clear("x:*", older_than_s=50) == 1
        assert store.clear("x:*") == 1
        assert store.get("y:1") is ENTRY


def test_pieces_are_those_that_came() -> None:
    assert list(ENTRY.pieces()) == [(0, ENTRY.body[:9]), (20, ENTRY.body[9:])]
    assert list(msgspec.structs.replace(ENTRY, cuts=(), pace_ms=()).pieces()) == [(0, ENTRY.body)]
