"""What other threads hand to the engine's loop."""

from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Inbox(SimpleQueue[T]):
    """A queue whose reader never sleeps for longer than it meant to."""

    def take(self, timeout_s: float | None) -> T:
        """The oldest message. Raises Empty if none comes in time.

        The first look leaves the lock of an empty queue taken. Otherwise a reader that is stopped (the machine sleeps, a
        container is paused, a core is taken away) between taking it and looking at the clock finds its time over, and Python
        3.11 then waits without end.
        """
        with suppress(Empty):
            return self.get_nowait()
        return self.get(timeout=timeout_s)
