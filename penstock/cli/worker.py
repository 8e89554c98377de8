"""The engine's process: `python -m penstock.cli.worker [--step-log=FILE] FOLDER`, its config as JSON on standard input.

Not for people.
"""

import signal
import sys
from functools import partial
from pathlib import Path

from penstock.cli.machines import make_engine
from penstock.engine.process import run_engine
from penstock.engine.wire import decode_config

STEP_LOG = "--step-log="


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when an interrupt ends us
    config = decode_config(sys.stdin.buffer.readline())
    *flags, folder = sys.argv[1:]
    step_log = next((Path(flag.removeprefix(STEP_LOG)) for flag in flags if flag.startswith(STEP_LOG)), None)
    return run_engine(partial(make_engine, config, step_log=step_log), Path(folder))


if __name__ == "__main__":
    sys.exit(main())
