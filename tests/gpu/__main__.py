"""Runs the tests of this package without pytest: python -m tests.gpu [--dry] [PART OF A NAME]

`--dry` puts the plain runner on this machine's CPU where the CUDA runner would be: it proves the tests, not the runner.
Modules that name packages in `PACKAGES` are left out, and said to be, where one of them is not installed.
"""

import importlib
import pkgutil
import sys
import time
import traceback
from importlib.util import find_spec

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
    left_out = []
    for module in sorted(pkgutil.iter_modules(tests.gpu.__path__), key=lambda each: each.name):
        if not module.name.startswith("test_"):
            continue
        found = vars(importlib.import_module(f"tests.gpu.{module.name}"))
        missing = [package for package in found.get("PACKAGES", ()) if find_spec(package) is None]
        if missing:
            left_out.append(f"{module.name} is left out: it needs {', '.join(missing)}")
            continue
        for name, test in found.items():
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
    print(*left_out, f"{num_run - num_failed} of {num_run} passed", sep="\n")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
