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

    def learn_parts(self, first_s: float | None, next_s: float | None) -> None:
        """The times of the first token and of a further one, where both are known apart. `first_s` is None where much had to be
        read first: a prompt, or what was drawn while nothing was asked for."""
        first_s = first_s or (None if self._first_s else next_s)
        if first_s is not None:
            self._first_s += (first_s - self._first_s) * (NEWS if self._first_s else 1.0)
        if next_s is not None:
            self._next_s += (next_s - self._next_s) * (NEWS if self._next_s else 1.0)

    def learn(self, length: int, seconds: float) -> None:
        if not self._first_s:
            self._first_s = self._next_s = seconds / length
            return
        missing = min(seconds - self(length), self(length))  # a machine that stood still once tells little
        # What is missing is shared out as the line has it, so that lengths seen often correct it most.
        weight = 1 + (length - 1) ** 2
        self._first_s = max(self._first_s + NEWS * missing / weight, LEAST_S)
        self._next_s = max(self._next_s + NEWS * missing * (length - 1) / weight, 0.0)
