"""The process of a rank that is not the first; its setup comes as JSON on standard input.

Not for people: `python -m penstock.assembly.parallel.rank_worker`. It ends when its input does, and with it the first rank.
"""

import logging
import os
import signal
import sys
import threading

from penstock.assembly.engine import run_rank
from penstock.assembly.parallel.ranks import RankSetup, decoded
from penstock.errors import PenstockError
from penstock.runtime.execution.parallel.machine.processes import beat

LOGGER = logging.getLogger(__name__)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides when an interrupt ends us
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    setup = decoded(line, RankSetup)
    threading.Thread(target=_end_with_input, name="orphan", daemon=True).start()
    beat(setup.rendezvous.host, setup.rendezvous.port, setup.rank)
    try:
        run_rank(setup)
    except PenstockError as error:
        LOGGER.error("rank %d: %s", setup.rank, error)
        return 1
    return 0


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):  # nothing is ever written there after the setup: this waits for its end
        continue
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
