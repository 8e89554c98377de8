"""Every CUDA kernel equals its operation's definition on this GPU, over all of the operation's examples.

python -m benchmarks.gpu.parity [NAME]
"""

import copy
import sys

import torch

from tests.ops.parity import cases, same


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    num_wrong = 0
    for op, device_type, kernel in cases():
        if device_type != "cuda" or wanted not in kernel.name:
            continue
        num_fitting, fault = 0, ""
        for arguments in op.examples(torch.device("cuda")):
            if not kernel.fits(*arguments):
                continue
            num_fitting += 1
            mine, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
            try:
                same(kernel.run(*mine), op.definition(*theirs))
                same(mine, theirs)
            except Exception as error:
                fault = f"{type(error).__name__}: {str(error)[:300]}"
        is_right = num_fitting and not fault
        num_wrong += not is_right
        print(f"{'ok   ' if is_right else 'WRONG'} {kernel.name}: {num_fitting} examples {fault}", flush=True)
    sys.exit(num_wrong > 0)


if __name__ == "__main__":
    main()
