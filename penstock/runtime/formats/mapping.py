"""A model file as bytes: mapped read-only into memory, never copied.

Owns what may be opened at all (regular files only). Knows nothing of what the bytes mean.
"""

import mmap
import os
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import ModelFileError

Bytes = npt.NDArray[np.uint8]


def map_file(path: Path) -> Bytes:
    """All bytes of a regular file, read-only.

    The mapping lives as long as any array that looks into it, so there is nothing to close and no view can dangle.
    """
    descriptor, size = open_regular(path)
    try:
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be mapped into memory: {_reason(error)}") from None
    finally:
        os.close(descriptor)
    return np.frombuffer(mapped, dtype=np.uint8)


def open_regular(path: Path) -> tuple[int, int]:
    """A descriptor of a regular file, for whoever closes it, and the file's size."""
    try:
        # A pipe would block the open itself, hence O_NONBLOCK; what was opened is judged by its descriptor, so that
        # nobody can swap the file between the check and the use.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path!s:.500} cannot be opened: {_reason(error)}") from None
    status = os.fstat(descriptor)
    fault = "" if stat.S_ISREG(status.st_mode) else "is not a regular file; name a model file"
    fault = fault or ("" if status.st_size else "is empty; fetch it again")
    if fault:
        os.close(descriptor)
        raise ModelFileError(f"{path} {fault}")
    return descriptor, status.st_size


def let_go(view: Bytes) -> None:
    """Give back the memory that reading a mapped file took, once its numbers are copied elsewhere; it can be read again."""
    owner: object = view
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
