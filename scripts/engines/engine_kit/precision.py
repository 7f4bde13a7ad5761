"""Write a GGUF model in another precision: `precision.py SOURCE TARGET q8_0|f16|bf16|f32 [NOISE]` (needs gguf).

NOISE harms the model on purpose, for tests of what notices that: see `derive`.
"""

from __future__ import annotations

import sys
import zlib

import gguf
import numpy as np

# llama.cpp says what a file's general.file_type says, whatever the tensors are: both have to change together.
PRECISIONS = {
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}
_FILE_TYPE = gguf.Keys.General.FILE_TYPE
_WRITTEN_BY_THE_WRITER = {gguf.Keys.General.ARCHITECTURE, _FILE_TYPE}


def derive(source: str, target: str, precision: str, noise: float = 0.0) -> None:
    """Write `source`'s model to `target` with its matrices in `precision` (a key of `PRECISIONS`).

    Vectors (norms, biases) stay as they are, as llama.cpp's own converter leaves them in float32. Metadata is copied.
    `noise` is the standard deviation of Gaussian noise that is added to each matrix, as a share of the matrix's own;
    the same share gives the same file.
    """
    tensor_type, file_type = PRECISIONS[precision]
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields[gguf.Keys.General.ARCHITECTURE].contents())
    _copy_metadata(reader, writer)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        if len(tensor.shape) < 2:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = gguf.dequantize(tensor.data, tensor.tensor_type)  # float32, shape (rows, columns)
        if noise:
            random = np.random.default_rng(zlib.crc32(tensor.name.encode()))
            values += noise * values.std() * random.standard_normal(values.shape, dtype=np.float32)
        writer.add_tensor(tensor.name, gguf.quantize(values, tensor_type), raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in _WRITTEN_BY_THE_WRITER:
            continue
        kind, *of = field.types
        writer.add_key_value(key, field.contents(), kind, sub_type=of[-1] if of else None)


if __name__ == "__main__":
    derive(*sys.argv[1:4], *map(float, sys.argv[4:]))
