"""Step times as they were logged, one after the other: with them the simulator must make the engine's own batches.

    turn k            turn k + 1       ...  idle ...       turn k + 2
      |---- lasted -------|-- device + host --|                |

A step lasted until the next turn began, or, where the loop then slept, for as long as device and host worked.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.features import Features, StepTime, features_of
from penstock.runtime.core.request import Request


class Replay:
    """A `Cost` for one run over the logged steps of an engine that had one step in flight at a time."""

    def __init__(self, steps: Sequence[StepTime]) -> None:
        self.asked: list[Features] = []
        """What each step was that a time was asked for: equal to the log's, if the schedule is."""
        self._times = _durations(steps)

    def step_s(self, batch: Batch) -> float:
        self.asked.append(features_of(batch))
        number = len(self.asked) - 1
        return self._times[number] if number < len(self._times) else 0.0

    def run_s(self, batch: Batch, num_steps: int) -> list[float]:
        """What comes of each step is only known when its time has come: runs cannot be predicted."""
        if num_steps != 1:
            raise ValueError("logged steps are replayed one by one; simulate without foretelling")
        return [self.step_s(batch)]


def as_taken(requests: Sequence[Request], taken_s: Mapping[int, float], steps: Sequence[StepTime]) -> list[Request]:
    """Requests that arrive when a live loop took them in.

    A turn that follows another at once may take in what came since that one began; halfway between the two is as good a time
    as any. A loop that slept began its turn when it woke.
    """
    starts = [step.start_s for step in steps]

    def arrival_s(time_s: float) -> float:
        place = min(bisect_left(starts, time_s), len(starts) - 1)
        if place and abs(starts[place - 1] - time_s) < abs(starts[place] - time_s):
            place -= 1  # a log on disk is rounded: the turn is the nearest
        return (starts[place] + starts[place - 1]) / 2 if place and steps[place - 1].is_busy else starts[place]

    return [replace(request, arrival_s=arrival_s(taken_s[request.request_id])) for request in requests]


def _durations(steps: Sequence[StepTime]) -> list[float]:
    durations = [
        after.start_s - step.start_s if step.is_busy else step.device_s + step.host_s for step, after in pairwise(steps)
    ]
    return durations + [step.device_s + step.host_s for step in steps[-1:]]
