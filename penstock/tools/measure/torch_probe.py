"""What torch finds on this machine, as JSON: `python -m penstock.tools.measure.torch_probe`. Not for people.

A process of its own: a torch that crashes or hangs takes only this one with it.
"""

import json
import sys


def main() -> None:
    from penstock.runtime.execution.device import CpuDevice, open_device
    from penstock.runtime.ops.cpu.library import open_library

    device, cpu = open_device("auto"), open_device("cpu")
    library = open_library(1)
    found = {
        "device": device.name,
        "is_cuda": device.torch_device.type == "cuda",
        "free_bytes": device.free_bytes,
        "num_threads": cpu.num_threads if isinstance(cpu, CpuDevice) else 0,
        "kernels": "" if library is None else library.kernels,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
