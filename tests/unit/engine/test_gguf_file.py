"""GGUF headers are read as the gguf package reads them, and a damaged file is named before anything is read from it."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.errors import BrokenModel, ModelError, UnsupportedModel
from engine.gguf_file import open_gguf
from tests.unit.engine.ggufs import LLAMA, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = LLAMA | {"text": "Zürich", "numbers": [1, 2, 3], "texts": ["a", "", "é"], "truth": True, "half": 0.5}
    blocks = gguf.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q4_1)
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": (blocks, gguf.GGMLQuantizationType.Q4_1)}
    return write(tmp_path / "model.gguf", values, tensors)


def test_values_and_places_are_those_that_the_gguf_package_finds(path: Path) -> None:
    file, reader = open_gguf(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert file.metadata == fields
    assert file.get("{arch}.embedding_length") == 8
    for tensor in reader.tensors:
        place = file.tensors[tensor.name]
        assert (place.offset, place.nbytes, place.type) == (tensor.data_offset, tensor.n_bytes, tensor.tensor_type.name)
        assert place.shape == tuple(reversed(tensor.shape.tolist()))


def test_a_file_cut_off_anywhere_is_said_to_be_broken(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    for length in range(0, len(whole) - 32, 7):  # the last bytes may be padding
        cut = tmp_path / f"cut-{length}.gguf"
        cut.write_bytes(whole[:length])
        with pytest.raises(BrokenModel, match=cut.name):
            open_gguf(cut)


def test_damaged_bytes_never_end_in_another_error(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    for place in range(4, 900, 3):
        damaged = tmp_path / f"{place}.gguf"
        damaged.write_bytes(whole[:place] + b"\xff" * 4 + whole[place + 4 :])
        with contextlib.suppress(ModelError):
            open_gguf(damaged)


def test_sizes_that_no_file_can_have_take_no_memory(tmp_path: Path) -> None:
    huge = tmp_path / "huge.gguf"
    array = struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 2**60)
    huge.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array)
    with pytest.raises(BrokenModel, match=r"huge\.gguf"):
        open_gguf(huge)


def test_other_files_and_versions_are_refused_by_name(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="missing"):
        open_gguf(tmp_path / "missing.gguf")
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    with pytest.raises(BrokenModel, match="no GGUF"):
        open_gguf(text)
    old = tmp_path / "old.gguf"
    old.write_bytes(b"GGUF" + struct.pack("<I", 1) + path.read_bytes()[8:])
    with pytest.raises(UnsupportedModel, match="version 1"):
        open_gguf(old)


def test_a_model_in_parts_is_one_and_a_missing_part_is_named(tmp_path: Path) -> None:
    first = write(tmp_path / "m-00001-of-00002.gguf", LLAMA | {"split.count": 2})
    with pytest.raises(BrokenModel, match="m-00002-of-00002"):
        open_gguf(first)
    write(tmp_path / "m-00002-of-00002.gguf", {}, {"output_norm.weight": np.ones(8, np.float32)})
    assert set(open_gguf(first).tensors) == {"token_embd.weight", "output_norm.weight"}
