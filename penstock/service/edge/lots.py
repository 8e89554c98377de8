"""Random names that nobody can guess, drawn from the system by the page: a system call each would cost more than the rest."""

import os

PAGE_BYTES = 4096


class RandomNames:
    """No byte is given twice. One for each event loop."""

    def __init__(self) -> None:
        self._page = b""

    def draw(self, num_bytes: int) -> bytes:
        """Twice as many hexadecimal digits."""
        if len(self._page) < 2 * num_bytes:
            self._page = os.urandom(PAGE_BYTES).hex().encode()
        drawn, self._page = self._page[: 2 * num_bytes], self._page[2 * num_bytes :]
        return drawn
