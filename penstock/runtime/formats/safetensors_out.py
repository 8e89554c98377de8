"""Writes safetensors files: a header of JSON, then the tensors' bytes one after another."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

NAMES = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32"}
ALIGNMENT = 8


def safetensors_metadata(path: Path) -> dict[str, str]:
    """Metadata of a file that was opened before."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    found = header.get("__metadata__", {})
    return found if isinstance(found, dict) else {}


def write_safetensors(
    path: Path, tensors: Mapping[str, npt.NDArray[np.generic]], about: Mapping[str, str] | None = None
) -> None:
    """The file is whole or not there."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(about or {})}}
    place = 0
    for name, values in tensors.items():
        end = place + values.nbytes
        header[name] = {"dtype": NAMES[values.dtype.name], "shape": list(values.shape), "data_offsets": [place, end]}
        place = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % ALIGNMENT)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
