"""What makes a start shorter before there is anything to start: importing torch takes most of it.

Knows nothing of what is imported, and must not import anything that takes time itself.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def hastened() -> Iterator[None]:
    """Imports in here: nothing is collected, since nothing of a module becomes waste, and a GPU's driver wakes meanwhile."""
    threading.Thread(target=_wake_driver, daemon=True).start()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _wake_driver() -> None:
    import ctypes  # takes time itself

    with suppress(OSError):  # where there is no GPU
        ctypes.CDLL("libcuda.so.1").cuInit(0)
