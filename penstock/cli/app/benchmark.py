"""A benchmark for the bench page: the command's own code, with how it comes along."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.cli.bench.command import measured
from penstock.cli.bench.config import Config
from penstock.console import args
from penstock.tools.bench.load import LoadProgress

PERIOD_S = 0.5


class _Reported:
    """Reports of a run, one every half second at most."""

    def __init__(self, report: Callable[[Mapping[str, Any]], None]) -> None:
        self._report = report
        self._last: tuple[str, float] = ("", 0.0)

    def say(self, text: str) -> None:
        self._report({"stage": text})

    def show(self, name: str, progress: LoadProgress) -> None:
        last_name, last_s = self._last
        if name == last_name and progress.elapsed_s - last_s < PERIOD_S:
            return
        self._last = (name, progress.elapsed_s)
        self._report({"stage": name, "num_open": progress.num_open, **asdict(progress)})


def benched(words: Sequence[str], report: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """As `penstock bench --json -` with these words."""
    config = args.build(Config, dict(args.parse(Config, words).values))
    return measured(config, _Reported(report))
