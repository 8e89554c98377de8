"""How a benchmark is coming along: one line on a terminal's standard error, drawn by rich; nothing anywhere else."""

import sys
from typing import Any, Protocol

from penstock.tools.bench.load import LoadProgress


class BenchProgress(Protocol):
    """A listener for the progress of a benchmark."""

    def say(self, text: str) -> None: ...

    def show(self, name: str, progress: LoadProgress) -> None: ...


class LiveProgress:
    """Shown within a `with`."""

    def __init__(self) -> None:
        self._status: Any = None
        self._last = (0.0, 0)
        self._rate = 0.0

    def __enter__(self) -> "LiveProgress":
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    def show(self, name: str, progress: LoadProgress) -> None:
        if self._status is None:
            return
        before_s, before = self._last
        if progress.elapsed_s < before_s:
            before_s, before = 0.0, 0
        passed_s = progress.elapsed_s - before_s
        if passed_s >= 0.5:
            self._rate = (progress.num_pieces - before) / passed_s
            self._last = (progress.elapsed_s, progress.num_pieces)
        failed = f", [red]{progress.num_failed:,} failed[/red]" if progress.num_failed else ""
        self.say(
            f"{name}: {progress.elapsed_s:,.0f} s, {progress.num_ended:,} of {progress.num_total:,} answered, "
            f"{progress.num_open:,} under way{failed}, {self._rate:,.0f} pieces/s"
        )
