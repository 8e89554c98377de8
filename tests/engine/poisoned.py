"""An oracle in its own process that certain prompts upset: `python -m tests.engine.poisoned FOLDER`."""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from penstock.cli.machines import make_engine
from penstock.config import EngineConfig
from penstock.core.batch import Batch
from penstock.engine.engine import Engine
from penstock.engine.machine import Machine
from penstock.engine.process import OnPhase, run_engine
from penstock.engine.runner import Runner
from penstock.engine.scripted import Done
from penstock.engine.wire import decode_config

RAISE, DIE, HANG, EXHAUST = 249, 250, 251, 252
"""First tokens of prompts that make a step raise, kill the process, never end, and run out of memory."""


class Upset:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def launch(self, batch: Batch) -> Done:
        for chunk in batch.chunks:
            first = chunk.token_ids[0] if chunk.arrival is not None else None
            if first == RAISE:
                raise ValueError("this prompt cannot be computed")
            if first == EXHAUST:
                raise MemoryError
            if first == DIE:
                os.kill(os.getpid(), signal.SIGKILL)
            if first == HANG:
                time.sleep(3600)
        return Done(self._runner.launch(batch).result())


def make(config: EngineConfig, on_phase: OnPhase) -> Machine:
    machine = make_engine(config, on_phase)
    engine = machine.engine
    upset = Engine(engine.scheduler, Upset(engine._runner), time.monotonic)
    return machine._replace(engine=upset)


if __name__ == "__main__":
    config = decode_config(sys.stdin.buffer.readline())
    sys.exit(run_engine(partial(make, config), Path(sys.argv[1])))
