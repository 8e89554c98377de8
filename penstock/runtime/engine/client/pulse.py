"""Signs of life of an engine's process, and when their absence means that it hangs. Told the time."""

STEP_FACTOR = 6.0
"""A single step may take this many times as long as silence may."""


class Pulse:
    """Written by whoever hears the engine."""

    def __init__(self, hang_s: float) -> None:
        self._hang_s = hang_s
        self.heard_s = 0.0
        """When the engine last sent something."""
        self.moved_s = 0.0
        """When its loop last turned, or had nothing to do."""
        self._num_loops = 0

    def begin(self, now: float) -> None:
        """A process begins, or becomes ready."""
        self.heard_s = self.moved_s = now
        self._num_loops = 0

    def beat(self, num_loops: int, now: float, *, is_busy: bool) -> None:
        """The process itself is alive; its loop is if it turned, or need not."""
        if num_loops != self._num_loops or not is_busy:
            self.moved_s = now
        self._num_loops = num_loops

    def forgive(self, seconds: float) -> None:
        """Time in which nobody listened is no silence."""
        self.heard_s += seconds
        self.moved_s += seconds

    def is_hung(self, now: float) -> bool:
        return now - self.heard_s > self._hang_s or now - self.moved_s > self._hang_s * STEP_FACTOR
