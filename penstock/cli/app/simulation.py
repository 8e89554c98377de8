"""A simulation for the cockpit: the command's own code, with frames to play back."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.cli.simulate import command
from penstock.console import args
from penstock.tools.sim.frames import Frames


def simulated(words: Sequence[str], on_progress: Callable[[float], None], has_frames: bool) -> dict[str, Any]:
    """As `penstock simulate --json` with these words, and what happened when."""
    config = args.build(command.Config, dict(args.parse(command.Config, words).values))
    frames: dict[str, Frames] = {}

    def recorder(strategy: str) -> Frames | None:
        return frames.setdefault(strategy, Frames(on_progress)) if has_frames else None

    outcome = command.outcome_of(config, recorder)
    found = {"report": command.data_of(config, outcome)}
    if frames:
        found["frames"] = {strategy: one.data() for strategy, one in frames.items()}
    return found
