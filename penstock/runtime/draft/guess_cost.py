"""Measured time of a drafter that computes, by the length of its guesses: a time for the first token, another for each
further."""

NEWS = 0.2
"""Weight of the latest measurement in the moving average."""
LEAST_S = 1e-6
"""Assumed before anything was measured: so little that the drafter is tried."""


class GuessCost:
    def __init__(self) -> None:
        self._first_s = self._next_s = 0.0

    def __call__(self, length: int) -> float:
        return max(self._first_s + self._next_s * (length - 1), LEAST_S) if length else 0.0

    def learn(self, length: int, seconds: float) -> None:
        if not self._first_s:
            self._first_s = self._next_s = seconds / length
            return
        missing = min(seconds - self(length), self(length))  # a machine that stood still once tells little
        # What is missing is shared out as the line has it, so that lengths seen often correct it most.
        weight = 1 + (length - 1) ** 2
        self._first_s = max(self._first_s + NEWS * missing / weight, LEAST_S)
        self._next_s = max(self._next_s + NEWS * missing * (length - 1) / weight, 0.0)
