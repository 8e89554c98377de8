"""What every model file is once opened: named tensors, as raw bytes with a number format and a shape.

Owns the values that leave `formats/`. Knows no file format, and not how any number format is decoded (see `quants`).
"""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from penstock.errors import ModelFileError
from penstock.runtime.formats.mapping import Bytes

MAX_COUNT = 2**63 - 1
"""No dimension, product of dimensions or size in bytes is larger: beyond it other readers of the file would overflow."""


@dataclass(frozen=True, slots=True, eq=False)
class RawTensor:
    """A tensor as it lies in the file. `data` is a read-only view of the mapped file and may be unaligned."""

    name: str
    dtype: str
    """Number format: "F32", "BF16", "Q4_K", ... (the keys of `quants.BLOCKS`)."""
    shape: tuple[int, ...]
    """Row-major: a matrix is [out, in]."""
    data: Bytes

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return int(self.data.size)

    @property
    def num_rows(self) -> int:
        """Runs of `row_size` values, all axes but the last taken together."""
        return math.prod(self.shape[:-1])

    @property
    def row_size(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return self.num_bytes // self.num_rows if self.num_rows else 0

    @property
    def rows(self) -> Bytes:
        """The same bytes as [num_rows, row_bytes]: whole rows can be picked or permuted without decoding them."""
        return self.data.reshape(self.num_rows, self.row_bytes)


class Checkpoint(Protocol):
    """An open model file, or several that make one."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def tensor(self, name: str) -> RawTensor: ...

    def close(self) -> None: ...


class TensorTable:
    """A Checkpoint whose tensors are all known and checked. Tensors handed out outlive `close`."""

    def __init__(self, path: Path, tensors: Mapping[str, RawTensor]) -> None:
        self.path = path
        self.names = tuple(tensors)
        self._tensors: Mapping[str, RawTensor] | None = tensors

    def tensor(self, name: str) -> RawTensor:
        if self._tensors is None:
            raise ModelFileError(f"{self.path} is closed; open it again")
        if name not in self._tensors:
            near = ", ".join(quoted(other) for other in get_close_matches(name[:200], self._tensors))
            hint = f"; it has {near}" if near else ""
            raise ModelFileError(f"{self.path} has no tensor {quoted(name)}{hint}")
        return self._tensors[name]

    def close(self) -> None:
        self._tensors = None


def quoted(value: object) -> str:
    """A value from a file, fit for a message: escaped, and short however long it is."""
    return _QUOTE.repr(value)


_QUOTE = reprlib.Repr()
_QUOTE.maxstring = 120
