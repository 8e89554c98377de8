"""How long operations come along: a bar, or a line that says what is being done. On a terminal's standard error only, and
drawn by rich, imported when there is something to draw.
"""

import sys
import time
from typing import Any, Self

PATIENCE_S = 0.5
"""What is over sooner needs no bar."""

STAGES = {
    "download": "fetching",
    "refetch": "fetching again",
    "unpack": "unpacking",
    "verify": "checking",
    "load": "loading",
}


class ProgressBar:
    """Call it with a stage and how much of how much is done, any number of times, within a `with`."""

    def __init__(self, unit: str = "bytes") -> None:
        self._unit = unit
        self._start_s: float | None = None
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if sys.stderr is None or not sys.stderr.isatty():
            return
        now = time.monotonic()
        self._start_s = now if self._start_s is None else self._start_s
        if self._bar is None:
            if now - self._start_s < PATIENCE_S:
                return
            self._open()
        self._bar.update(self._task, description=STAGES.get(stage, stage), completed=done, total=total)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self) -> None:
        from rich import progress
        from rich.console import Console

        amount = progress.DownloadColumn() if self._unit == "bytes" else progress.MofNCompleteColumn()
        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            amount,
            progress.TimeRemainingColumn(),
        )
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=None)
        self._bar.start()


class StatusLine:
    """A line that says what is being done, within a `with`; nothing where standard error is no terminal."""

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._status: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(self._text)
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
