"""GGUF files, versions 2 and 3: a header of typed metadata, a table of tensors, then the tensors' bytes.

    magic, version, counts | key, type, value ... | name, dims, type, offset ... | padding | data

The file is not trusted. Every length is compared with the bytes that are left before anything is made of it, and every
tensor is known to lie inside the file before anyone may read it. Knows nothing of models: metadata are plain values.
"""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from penstock.errors import ModelFileError
from penstock.runtime.formats.checkpoint import MAX_COUNT, RawTensor, TensorTable, quoted
from penstock.runtime.formats.mapping import Bytes, map_file
from penstock.runtime.formats.quants import BLOCKS

# Far above any model, low enough that a hostile file cannot turn few bytes into many objects.
MAX_ENTRIES = 1 << 16
"""Metadata keys, and tensors, in a file."""
MAX_ARRAY_STRINGS = 1 << 21
"""Strings in all arrays together: a vocabulary and its merges."""
MAX_KEY_BYTES = (1 << 16) - 1
"""Bytes of a metadata key, of a tensor's name and of a string in an array."""
MAX_TEXT_BYTES = 1 << 26
"""Bytes of a string that stands alone, such as a chat template."""

_SIZE = struct.Struct("<Q")
"""Before every string."""
_LEAST_KEY_BYTES = 14
_LEAST_TENSOR_BYTES = 33
STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
"""Kinds of numbers, by the format's own numbers for them."""

TENSOR_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    4: "Q4_2",
    5: "Q4_3",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
"""Names of the format's type numbers; those without an entry in `BLOCKS` are refused by name."""

_DAMAGED = "the file is damaged or cut short; fetch it again"


class GgufFile(TensorTable):
    """An open GGUF file. Numbers in metadata are Python's, arrays of them read-only numpy views, arrays of strings `Texts`."""

    metadata: Mapping[str, object]

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        data = map_file(path)
        cursor = _Cursor(path, data)
        num_tensors, num_keys = _read_preamble(cursor)
        metadata = _read_metadata(cursor, num_keys)
        _check_metadata(cursor, metadata)
        tensors = _read_tensors(cursor, num_tensors, _alignment(cursor, metadata))
        super().__init__(path, tensors)
        self.metadata = MappingProxyType(metadata)


class GgufTexts(Sequence[str]):
    """An array of strings, none of which leaves the file. They are made, and must be text, when they are asked for: a
    vocabulary is large, and needed once or not at all."""

    def __init__(self, cursor: "_Cursor", begin: int, count: int, what: str) -> None:
        self._cursor = cursor
        self._begin = begin
        self._count = count
        self._what = what

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        buffer, end = self._cursor.buffer, self._begin
        size_at = _SIZE.unpack_from
        try:
            for _ in range(self._count):
                (length,) = size_at(buffer, end)
                start = end + _SIZE.size
                end = start + length
                yield str(buffer[start:end], "utf-8")
        except UnicodeDecodeError:
            raise self._cursor.fault(f"{self._what} holds a string that is not UTF-8 text; {_DAMAGED}") from None

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        return list(self)[index]


class _Cursor:
    """A position in the header that cannot leave the file."""

    def __init__(self, path: Path, data: Bytes) -> None:
        self.path = path
        self.data = data
        self.position = 0
        self.buffer: memoryview[int] = data.data
        self._num_array_strings = 0

    @property
    def remaining(self) -> int:
        return len(self.buffer) - self.position

    def fault(self, text: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {text}")

    def check_capacity(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.remaining:
            raise self.fault(f"{what} needs {num_bytes} bytes and only {self.remaining} are left; {_DAMAGED}")

    def unsigned(self, num_bytes: int, what: str) -> int:
        self.check_capacity(num_bytes, what)
        start = self.position
        self.position += num_bytes
        return int.from_bytes(self.buffer[start : self.position], "little")

    def text(self, max_bytes: int, what: str) -> str:
        length = self.unsigned(8, f"the length of {what}")
        self.check_capacity(length, what)
        if length > max_bytes:
            raise self.fault(f"{what} is {length} bytes long; at most {max_bytes} are read")
        start = self.position
        self.position += length
        try:
            return str(self.buffer[start : self.position], "utf-8")
        except UnicodeDecodeError:
            raise self.fault(f"{what} is not UTF-8 text; {_DAMAGED}") from None

    def number(self, kind: int, what: str) -> int | float | bool:
        number: int | float = self.numbers(kind, 1, what).item()
        return bool(number) if kind == BOOL else number

    def numbers(self, kind: int, count: int, what: str) -> npt.NDArray[Any]:
        dtype = NUMBERS[kind]
        self.check_capacity(count * dtype.itemsize, what)
        numbers = np.frombuffer(self.data, dtype, count, self.position)
        self.position += numbers.nbytes
        if kind == BOOL:
            if (numbers > 1).any():
                raise self.fault(f"{what} holds a truth value that is neither 0 nor 1; {_DAMAGED}")
            return numbers.view(np.bool_)
        return numbers

    def texts(self, count: int, what: str) -> GgufTexts:
        """An array of strings. A vocabulary has some 10^5, so this loop only looks at their lengths."""
        self.check_capacity(8 * count, what)
        self._num_array_strings += count
        if self._num_array_strings > MAX_ARRAY_STRINGS:
            raise self.fault(f"its arrays hold more than {MAX_ARRAY_STRINGS} strings (at {what}); no model has so many")
        buffer, end = self.buffer, self.position
        size_at, size = _SIZE.unpack_from, len(buffer)
        try:
            for _ in range(count):
                (length,) = size_at(buffer, end)
                end += _SIZE.size + length
                if end > size or length > MAX_KEY_BYTES:
                    raise self.fault(
                        f"{what} holds a string {length} bytes long, more than a token may have or are left"
                    )
        except struct.error:
            raise self.fault(f"{what} runs past the end of the file; {_DAMAGED}") from None
        begin, self.position = self.position, end
        return GgufTexts(self, begin, count, what)


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """Counts of tensors and of metadata keys."""
    if cursor.remaining < 4 or bytes(cursor.data[:4]) != b"GGUF":
        raise cursor.fault("it does not begin with the letters GGUF, so it is not a GGUF file; name a .gguf model file")
    cursor.position = 4
    version = cursor.unsigned(4, "the version")
    if version not in (2, 3):
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3):
            raise cursor.fault("it is written for big-endian machines; convert it to little-endian")
        raise cursor.fault(f"it is GGUF version {version}; versions 2 and 3 are read, so convert the model again")
    num_tensors = cursor.unsigned(8, "the number of tensors")
    num_keys = cursor.unsigned(8, "the number of metadata keys")
    for count, what in ((num_tensors, "tensors"), (num_keys, "metadata keys")):
        if count > MAX_ENTRIES:
            raise cursor.fault(f"it claims {count} {what}; at most {MAX_ENTRIES} are read; {_DAMAGED}")
    least = num_tensors * _LEAST_TENSOR_BYTES + num_keys * _LEAST_KEY_BYTES
    cursor.check_capacity(least, f"a table of {num_tensors} tensors and {num_keys} metadata keys")
    return num_tensors, num_keys


def _read_metadata(cursor: _Cursor, num_keys: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(num_keys):
        key = cursor.text(MAX_KEY_BYTES, "a metadata key")
        if not key:
            raise cursor.fault(f"a metadata key is empty; {_DAMAGED}")
        if key in metadata:
            raise cursor.fault(f"metadata key {quoted(key)} appears twice; {_DAMAGED}")
        metadata[key] = _read_value(cursor, f"metadata {quoted(key)}")
    return metadata


def _read_value(cursor: _Cursor, what: str) -> object:
    kind = cursor.unsigned(4, f"the type of {what}")
    if kind in NUMBERS:
        return cursor.number(kind, what)
    if kind == STRING:
        return cursor.text(MAX_TEXT_BYTES, what)
    if kind != ARRAY:
        raise cursor.fault(f"{what} has unknown type {kind}; {_DAMAGED}")
    kind = cursor.unsigned(4, f"the type of {what}")
    count = cursor.unsigned(8, f"the length of {what}")
    if kind in NUMBERS:
        return cursor.numbers(kind, count, what)
    if kind == STRING:
        return cursor.texts(count, what)
    if kind == ARRAY:
        raise cursor.fault(f"{what} is an array of arrays, which is not read; no model needs one")
    raise cursor.fault(f"{what} is an array of unknown type {kind}; {_DAMAGED}")


def _check_metadata(cursor: _Cursor, metadata: Mapping[str, object]) -> None:
    """The few keys whose type everyone relies on."""
    architecture = metadata.get("general.architecture", "")
    if not isinstance(architecture, str):
        raise cursor.fault("metadata 'general.architecture' is not a string")
    num_layers = metadata.get(f"{architecture}.block_count", 1)
    if type(num_layers) is not int or num_layers < 1:
        raise cursor.fault(
            f"metadata {quoted(architecture + '.block_count')} is {quoted(num_layers)}, not a count of layers"
        )
    num_parts = metadata.get("split.count", 1)
    if type(num_parts) is not int or num_parts > 1:
        raise cursor.fault(
            f"it is one of {quoted(num_parts)} parts of a split model; join them first (llama-gguf-split --merge)"
        )


def _alignment(cursor: _Cursor, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 31:
        raise cursor.fault(f"metadata 'general.alignment' is {quoted(alignment)}; it must be a power of two")
    return alignment


def _read_tensors(cursor: _Cursor, num_tensors: int, alignment: int) -> dict[str, RawTensor]:
    entries = [_read_entry(cursor) for _ in range(num_tensors)]
    data_start = _align(cursor.position, alignment)
    tensors: dict[str, RawTensor] = {}
    expected = 0
    for name, dtype, shape, offset in entries:
        if name in tensors:
            raise cursor.fault(f"tensor {quoted(name)} appears twice; {_DAMAGED}")
        if offset % alignment:
            raise cursor.fault(f"tensor {quoted(name)} begins at {offset}, not a multiple of {alignment}; {_DAMAGED}")
        if offset != expected:
            raise cursor.fault(
                f"tensor {quoted(name)} begins at {offset}, not {expected} where the last ended; {_DAMAGED}"
            )
        num_bytes = _num_bytes(cursor, name, dtype, shape)
        start = data_start + offset
        if start + num_bytes > len(cursor.data):
            missing = start + num_bytes - len(cursor.data)
            raise cursor.fault(f"tensor {quoted(name)} ends {missing} bytes past the end of the file; {_DAMAGED}")
        tensors[name] = RawTensor(name, dtype, shape, cursor.data[start : start + num_bytes])
        expected = _align(offset + num_bytes, alignment)
    return tensors


def _read_entry(cursor: _Cursor) -> tuple[str, str, tuple[int, ...], int]:
    """Name, number format, row-major shape and offset of a tensor."""
    name = cursor.text(MAX_KEY_BYTES, "a tensor's name")
    if not name:
        raise cursor.fault(f"a tensor's name is empty; {_DAMAGED}")
    what = f"tensor {quoted(name)}"
    num_dims = cursor.unsigned(4, what)
    if not 1 <= num_dims <= 4:
        raise cursor.fault(f"{what} has {num_dims} dimensions; 1 to 4 are read; {_DAMAGED}")
    dims = [cursor.unsigned(8, what) for _ in range(num_dims)]
    if min(dims) == 0 or math.prod(dims) > MAX_COUNT:
        raise cursor.fault(f"{what} has dimensions {dims}, which no tensor can have; {_DAMAGED}")
    kind = cursor.unsigned(4, what)
    dtype = TENSOR_TYPES.get(kind, f"type number {kind}")
    if dtype not in BLOCKS:
        known = ", ".join(known for known in TENSOR_TYPES.values() if known in BLOCKS)
        raise cursor.fault(f"{what} is of type {dtype}, which is not read; use a file of these: {known}")
    # The file names the innermost dimension first.
    return name, dtype, tuple(reversed(dims)), cursor.unsigned(8, what)


def _num_bytes(cursor: _Cursor, name: str, dtype: str, shape: tuple[int, ...]) -> int:
    block = BLOCKS[dtype]
    if shape[-1] % block.num_values:
        raise cursor.fault(
            f"tensor {quoted(name)} has rows of {shape[-1]} values, not a multiple of the {block.num_values} "
            f"in a {dtype} block; {_DAMAGED}"
        )
    return math.prod(shape) // block.num_values * block.num_bytes


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
