"""Random names that nobody can guess, drawn from the system by the page: a system call each would cost more than the rest."""

import os

PAGE_BYTES = 4096
_page = b""


def random_hex(num_bytes: int) -> bytes:
    """Twice as many hexadecimal digits. No byte is given twice."""
    global _page
    if len(_page) < 2 * num_bytes:
        _page = os.urandom(PAGE_BYTES).hex().encode()
    drawn, _page = _page[: 2 * num_bytes], _page[2 * num_bytes :]
    return drawn
