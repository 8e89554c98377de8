"""Files of lines that programs read: appended to, each line whole or not there, and nobody who writes ever fails by it.

A disk that is full, read-only or gone, or a pipe that is closed, loses lines: they are counted, and the log tells when that
begins and when it is over. Knows nothing of what is in a line.
"""

import contextlib
import logging
import os
from pathlib import Path

from penstock.errors import ConfigError

LOGGER = logging.getLogger(__name__)


class LineFile:
    """One writer. `name` is what people call the file: the flag that asked for it."""

    def __init__(self, path: Path, name: str, *, is_new: bool = False) -> None:
        """Appends to what is there, or begins anew. Raises ConfigError."""
        self.num_lost = 0
        """Lines that could not be written, ever."""
        self._name = name
        self._num_lost_now = 0
        """Since the last that could be."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if is_new else 0)
        try:
            self._descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            raise ConfigError(f"{name} {path} cannot be written: {error.strerror}") from error

    def write(self, line: bytes) -> None:
        """Without its end."""
        data = line + b"\n"
        try:
            num_bytes = os.write(self._descriptor, data)
            if num_bytes < len(data):
                self._take_back(num_bytes)
                raise OSError("the disk took a part of a line")
        except OSError as error:
            self.num_lost += 1
            self._num_lost_now += 1
            if self._num_lost_now == 1:
                LOGGER.warning(
                    "%s cannot be written: %s; lines are lost and counted", self._name, error.strerror or error
                )
            return
        if self._num_lost_now:
            LOGGER.warning("%s can be written again; %d lines were lost", self._name, self._num_lost_now)
            self._num_lost_now = 0

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()

    def _take_back(self, num_bytes: int) -> None:
        """A part of a line is no line."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - num_bytes)
