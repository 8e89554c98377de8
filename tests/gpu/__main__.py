"""Runs the tests of this package without pytest: python -m tests.gpu [--dry] [PART OF A NAME]

`--dry` puts the plain runner on this machine's CPU where the CUDA runner would be: it proves the tests, not the runner.
"""

import importlib
import pkgutil
import sys
import time
import traceback

import torch

import tests.gpu
from tests.gpu import machine


def main() -> int:
    wanted = [argument for argument in sys.argv[1:] if argument != "--dry"]
    machine.IS_DRY = "--dry" in sys.argv
    if not machine.IS_DRY and not torch.cuda.is_available():
        print("no CUDA device here: nothing was tested")
        return 2
    print("dry run" if machine.IS_DRY else torch.cuda.get_device_name(), f"torch {torch.__version__}", flush=True)
    num_failed = num_run = 0
    for module in sorted(pkgutil.iter_modules(tests.gpu.__path__), key=lambda each: each.name):
        if not module.name.startswith("test_"):
            continue
        for name, test in vars(importlib.import_module(f"tests.gpu.{module.name}")).items():
            if not name.startswith("test_") or not all(part in name for part in wanted):
                continue
            begun = time.monotonic()
            fault = ""
            try:
                test()
            except Exception:
                fault = traceback.format_exc(limit=-4)
            num_run += 1
            num_failed += bool(fault)
            print(f"{'FAILED' if fault else 'passed'} {time.monotonic() - begun:6.1f} s  {name}", flush=True)
            if fault:
                print(fault[-1800:], flush=True)
    print(f"{num_run - num_failed} of {num_run} passed")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
