"""Checkpoints made of arrays, without a file."""

from pathlib import Path

import numpy as np

from penstock.runtime.formats.checkpoint import RawTensor, TensorTable

NAMES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int32": "I32", "int64": "I64"}


def checkpoint(**arrays: np.ndarray) -> TensorTable:
    """Tensors by name (`__` stands for a dot), as an open file would hold them."""
    tensors = {}
    for key, array in arrays.items():
        name = key.replace("__", ".")
        data = np.frombuffer(array.tobytes(), dtype=np.uint8)
        tensors[name] = RawTensor(name, NAMES[array.dtype.name], array.shape, data)
    return TensorTable(Path("tensors"), tensors)
