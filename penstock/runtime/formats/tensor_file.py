"""Model files written: the header first, since every tensor's type and shape is known before its numbers.

A file may be written piece by piece. What is open is bounded by one tensor, and a file of which some tensors are missing can
be gone on with: their places are known. The caller gives the file its last name when all of it is there.
"""

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import ModelFileError
from penstock.runtime.formats.gguf import ARRAY, BOOL, NUMBERS, STRING, TENSOR_TYPES, GgufTexts
from penstock.runtime.formats.quants import BLOCKS

SAFETENSORS_ALIGNMENT = 8
SAFETENSORS_KINDS = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32"}
GGUF_ALIGNMENT = 32
_U32, _F32, _I64 = 4, 6, 11
_ARRAY_KINDS = {dtype.str[1:]: kind for kind, dtype in NUMBERS.items() if kind != BOOL}


class PlannedTensor(NamedTuple):
    name: str
    dtype: str
    """A key of `quants.BLOCKS`."""
    shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        block = BLOCKS[self.dtype]
        return self.num_values // block.num_values * block.num_bytes


class TensorFile:
    """`put` writes a tensor at its place, in any order."""

    def __init__(self, path: Path, header: bytes, places: Mapping[str, tuple[int, int]], num_bytes: int) -> None:
        """A file that is there already, with this very header, is gone on with."""
        self.path = path
        self._places = places
        is_new = not path.exists() or path.stat().st_size != num_bytes
        self._file = path.open("wb" if is_new else "r+b")
        if is_new:
            self._file.write(header)
            self._file.truncate(num_bytes)

    def put(self, name: str, data: npt.NDArray[Any]) -> None:
        offset, num_bytes = self._places[name]
        if data.nbytes != num_bytes:
            raise ModelFileError(f"tensor {name} was planned with {num_bytes} bytes and has {data.nbytes}")
        self._file.seek(offset)
        self._file.write(np.ascontiguousarray(data).data)

    def sync(self) -> None:
        """What has been put is on the disk when this returns."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def new_safetensors(path: Path, tensors: Iterable[PlannedTensor], about: Mapping[str, str] | None = None) -> TensorFile:
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(about or {})}}
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for tensor in tensors:
        places[tensor.name] = (end, tensor.num_bytes)
        offsets = [end, end + tensor.num_bytes]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        end += tensor.num_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % SAFETENSORS_ALIGNMENT)
    begin = 8 + len(text)
    shifted = {name: (begin + offset, size) for name, (offset, size) in places.items()}
    return TensorFile(path, len(text).to_bytes(8, "little") + text, shifted, begin + end)


def write_safetensors(
    path: Path, tensors: Mapping[str, npt.NDArray[np.generic]], about: Mapping[str, str] | None = None
) -> None:
    """All tensors at once; the file is whole or not there."""
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    kinds = {name: SAFETENSORS_KINDS[values.dtype.name] for name, values in tensors.items()}
    planned = [PlannedTensor(name, kinds[name], values.shape) for name, values in tensors.items()]
    file = new_safetensors(partial, planned, about)
    for name, values in tensors.items():
        file.put(name, values)
    file.sync()
    file.close()
    partial.replace(path)


def safetensors_metadata(path: Path) -> dict[str, str]:
    """Metadata of a file that was opened before."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    found = header.get("__metadata__", {})
    return found if isinstance(found, dict) else {}


def new_gguf(path: Path, metadata: Mapping[str, object], tensors: Sequence[PlannedTensor]) -> TensorFile:
    numbers = {name: number for number, name in TENSOR_TYPES.items()}
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    parts += [_text(key) + _value(key, value) for key, value in metadata.items()]
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for tensor in tensors:
        dims = tuple(reversed(tensor.shape))
        parts.append(_text(tensor.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        parts.append(struct.pack("<IQ", numbers[tensor.dtype], end))
        places[tensor.name] = (end, tensor.num_bytes)
        end += _aligned(tensor.num_bytes)
    header = b"".join(parts)
    header += b"\0" * (_aligned(len(header)) - len(header))
    shifted = {name: (len(header) + offset, size) for name, (offset, size) in places.items()}
    return TensorFile(path, header, shifted, len(header) + end)


def _aligned(position: int) -> int:
    return -(-position // GGUF_ALIGNMENT) * GGUF_ALIGNMENT


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(key: str, value: object) -> bytes:
    """Whole numbers become the kind that readers expect of them: unsigned, of 32 bits where they fit."""
    match value:
        case bool():
            return struct.pack("<I?", BOOL, value)
        case int():
            if 0 <= value < 1 << 32:
                return struct.pack("<II", _U32, value)
            return struct.pack("<Iq", _I64, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", STRING) + _text(value)
        case np.ndarray():
            kind = BOOL if value.dtype == np.bool_ else _ARRAY_KINDS[value.dtype.str[1:]]
            return struct.pack("<IIQ", ARRAY, kind, len(value)) + value.tobytes()
        case list() | tuple() | GgufTexts():
            texts = list(value)
            return struct.pack("<IIQ", ARRAY, STRING, len(texts)) + b"".join(_text(str(each)) for each in texts)
    raise ModelFileError(f"metadata {key} is {type(value).__name__}, which GGUF cannot hold")
