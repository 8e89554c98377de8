"""How a benchmark is coming along: one line on a terminal's standard error, drawn by rich; nothing anywhere else."""

from typing import Protocol

from penstock.console.progress import StatusLine
from penstock.tools.bench.load import LoadProgress


class BenchProgress(Protocol):
    """A listener for the progress of a benchmark."""

    def say(self, text: str) -> None: ...

    def show(self, name: str, progress: LoadProgress) -> None: ...


class LiveProgress(StatusLine):
    """Shown within a `with`."""

    def __init__(self) -> None:
        super().__init__()
        self._last = (0.0, 0)
        self._rate = 0.0

    def show(self, name: str, progress: LoadProgress) -> None:
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
