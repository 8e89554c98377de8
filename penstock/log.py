"""Logging that cannot hurt: standard `logging`, one handler, plain lines or JSON, and no writer that raises.

A log that cannot be written (full disk, closed pipe) loses lines and counts them; the caller never notices. No text of
a prompt or an answer is logged at any level.
"""

import io
import json
import logging
import os
import select
import stat
import sys
from typing import Any, TextIO

MAX_PIPE_BYTES = select.PIPE_BUF
"""What a pipe that has room takes without making the writer wait."""
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class SafeHandler(logging.StreamHandler[TextIO]):
    """Counts what it could not write. A pipe without a reader is not waited for: its lines are lost."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.num_lost = 0
        self._pipe = _pipe_of(stream)

    def emit(self, record: logging.LogRecord) -> None:
        if self._pipe is None:
            super().emit(record)
            return
        try:
            line = self.format(record).encode(errors="replace")
            if len(line) >= MAX_PIPE_BYTES:
                line = line[: MAX_PIPE_BYTES - 5] + b" ..."
            if not self._pipe.poll(0):
                raise BlockingIOError
            os.write(self.stream.fileno(), line + b"\n")
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is the standard library's)
        self.num_lost += 1


def _pipe_of(stream: TextIO) -> "select.poll | None":
    """Tells whether a pipe has room; None for what is no pipe."""
    try:
        descriptor = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return None
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):  # closed, or not there at all
        return None
    pipe = select.poll()
    pipe.register(descriptor, select.POLLOUT)
    return pipe


class PlainFormatter(logging.Formatter):
    """`penstock: message`, with the level where it is not the usual one."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        text = f"{self._program}: {level}{record.getMessage()}"
        return text if record.exc_info is None else f"{text}\n{self.formatException(record.exc_info)}"


class JsonFormatter(PlainFormatter):
    """An object a line: time, level, program, module, message, and whatever was given as `extra` under `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "program": self._program,
            "module": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info is not None:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(level: str = "info", form: str = "plain", program: str = "penstock") -> None:
    """Log everything of ours to the error stream. Asked again, the last word holds."""
    handler = SafeHandler(sys.stderr)
    handler.setFormatter((JsonFormatter if form == "json" else PlainFormatter)(program))
    ours = logging.getLogger("penstock")
    ours.handlers = [handler]
    ours.setLevel(LEVELS[level])
    ours.propagate = False


def num_lost_lines() -> int:
    """Of this process's log, ever."""
    return sum(getattr(handler, "num_lost", 0) for handler in logging.getLogger("penstock").handlers)


def say(text: str) -> None:
    """Print for whoever started us. Nobody has to be there to read it: then it is dropped, and so is what is printed later."""
    try:
        print(text, flush=True)
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for as long as we run)


def hold_streams() -> None:
    """A stream that whoever started us has closed leads nowhere, here and in our children. Left as it is, its number would be
    the next socket's, and what a library prints there would go to a client."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (for as long as we run)
