"""Files that are kept: each whole or not there at all.

A file is written under another name, brought to disk and only then given its own, so that whoever finds it finds all of it,
whatever moment the machine stopped at. Knows nothing of what is in them.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from penstock.errors import ConfigError, StoreError

PART = ".part"
SPARE_BYTES = 64 << 20
"""Room that is left on the disk for the database and the logs."""


class BlobStore:
    """One directory, one file a name. Names are ours, never a client's."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for left in directory.glob(f"*{PART}"):
                left.unlink()  # nobody was told of these
        except OSError as error:
            raise ConfigError(
                f"cannot keep files in {directory}: {error.strerror}; choose another --data-dir"
            ) from error

    def check_room(self, num_bytes: int) -> None:
        """Raise StoreError if so much would fill the disk."""
        free = shutil.disk_usage(self._directory).free
        if num_bytes + SPARE_BYTES > free:
            raise StoreError(f"the disk has {free:,} bytes left, too few for {num_bytes:,}; delete files, or try later")

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """Where to write; the file exists once the block is left without an error."""
        part = self._directory / f"{name}{PART}"
        try:
            with open(part, "wb", opener=_for_its_owner) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path(name))
            self._sync_directory()
        except OSError as error:
            raise StoreError(f"a file cannot be written: {error.strerror}; look at the disk of --data-dir") from error
        finally:
            part.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        return self._directory / name

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def names(self) -> set[str]:
        return {path.name for path in self._directory.iterdir() if not path.name.endswith(PART)}

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _for_its_owner(path: str, flags: int) -> int:
    """What clients left is nobody else's to read."""
    return os.open(path, flags, 0o600)
