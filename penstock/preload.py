"""What can begin before torch is imported, which takes most of a start: a GPU's driver wakes meanwhile.

Must not import anything that takes time itself.
"""

import threading
from contextlib import suppress


def begin() -> None:
    """In a thread, beside whatever is imported next."""
    threading.Thread(target=_wake_driver, daemon=True).start()


def _wake_driver() -> None:
    """Whoever asks for a GPU next is answered at once."""
    import ctypes

    with suppress(OSError):  # where there is no GPU
        ctypes.CDLL("libcuda.so.1").cuInit(0)
