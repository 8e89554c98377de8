"""A replica's `penstock serve`, on a cluster's machine or beside its router, or `penstock rank`. Not for people.

Run as `python -m penstock.cli.fleet.server_process serve FLAGS`. It ends when its input does.
"""

import os
import signal
import sys
import threading
import time

GRACE_S = 5.0
"""Answers in progress get this long when whoever held our input is gone."""


def main() -> int:
    threading.Thread(target=_end_with_input, name="orphan", daemon=True).start()
    from penstock.cli.main import main as command

    return command(sys.argv[1:])


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
