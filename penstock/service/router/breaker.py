"""When a replica that fails is left alone, and when it is tried again. Pure: told the time, holds no connection.

    closed  --max_failures in a row-->  open  --wait over-->  half open: one request  --it succeeds-->  closed
                                         ^                                  |
                                         +-------- it fails, wait doubles --+

Only faults of the replica count: refused or broken connections, timeouts, 5xx, streams that end early. A client's own faults
(4xx) are neither failure nor success.
"""

MAX_FAILURES = 5
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 4.0


class Breaker:
    __slots__ = ("_is_trying", "_num_failures", "_open_until_s", "_wait_s", "is_closed")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Another process answers there now: what the last one did is no news of it."""
        self._num_failures = 0
        self._wait_s = FIRST_WAIT_S
        self._open_until_s = 0.0
        self._is_trying = False
        self.is_closed = True

    def allows(self, now: float) -> bool:
        """A request may be sent: all while closed, one at a time once the wait is over."""
        return self.is_closed or (now >= self._open_until_s and not self._is_trying)

    def begin(self, now: float) -> None:
        """A request is sent."""
        self._is_trying = not self.is_closed

    def succeed(self) -> None:
        if self._num_failures:
            self.reset()

    def fail(self, now: float) -> None:
        self._num_failures += 1
        if not self.is_closed:
            if self._is_trying or now >= self._open_until_s:
                self._wait_s = min(self._wait_s * 2, LONGEST_WAIT_S)
                self._open_until_s = now + self._wait_s
                self._is_trying = False
        elif self._num_failures >= MAX_FAILURES:
            self._open_until_s = now + self._wait_s
            self.is_closed = False

    def give_up(self) -> None:
        """The request ended without saying anything of the replica: its client left, or was at fault."""
        self._is_trying = False
