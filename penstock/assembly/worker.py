"""The engine's process: `python -m penstock.assembly.worker [FLAGS] FOLDER`, its config as JSON on stdin. Not for people.

--model=NAME       what the config is going to ask for: what it needs is imported before that comes
--ranks=COUNT      how many it will take on this machine: the others are begun at once, and import beside this one
--step-log=FILE    a line a step goes there
--log=LEVEL:FORM   how much is logged, and how
--offer=HOST       blocks are offered to peers there, and fetched from them; PENSTOCK_REPLICA_KEY is what all of them know
"""

import gc
import os
import shutil
import signal
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path

import msgspec

from penstock.assembly.machines import is_arithmetic, make_engine
from penstock.assembly.peers import PeerSettings
from penstock.config import EngineConfig
from penstock.log import set_up
from penstock.runtime import preload
from penstock.runtime.engine.process import run_engine

MODEL = "--model="
RANKS = "--ranks="
STEP_LOG = "--step-log="
LOG = "--log="
OFFER = "--offer="

SPINS_OF_SHARED_PROCESSORS = "1000"
"""What the library takes itself where it knows of more threads than processors."""


def main() -> int:
    start_s = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when an interrupt ends us
    *flags, folder = sys.argv[1:]
    level, _, form = (_value(flags, LOG) or "info:plain").partition(":")
    set_up(level, form, "penstock engine")
    model = _value(flags, MODEL)
    share_processors()
    if model is not None and not is_arithmetic(model):
        preload.begin_ranks(int(_value(flags, RANKS) or 1) - 1)
        preload.begin_compilers()
        gc.disable()  # `run_engine` enables it when the engine is made
        import_module("penstock.assembly.engine")  # torch: most of a start
    setup = sys.stdin.buffer.readline()
    if not setup:  # whoever began this process is gone
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    step_log = _value(flags, STEP_LOG)
    host = _value(flags, OFFER)
    peers = None if host is None else PeerSettings(host, os.environ["PENSTOCK_REPLICA_KEY"].encode())
    config = msgspec.json.decode(setup, type=EngineConfig)
    make = partial(make_engine, config, step_log=None if step_log is None else Path(step_log), peers=peers)
    return run_engine(make, Path(folder), start_s)


def share_processors() -> None:
    """Threads of torch's products give their processors back soon after each, unless the environment says how they wait. For
    another engine may wait for the same processors; of that the library knows nothing, and it would spin for milliseconds.
    """
    if os.environ.keys().isdisjoint(("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")):
        os.environ["GOMP_SPINCOUNT"] = SPINS_OF_SHARED_PROCESSORS


def _value(flags: list[str], name: str) -> str | None:
    return next((flag.removeprefix(name) for flag in flags if flag.startswith(name)), None)


if __name__ == "__main__":
    sys.exit(main())
