"""Runs every CUDA kernel under Triton's interpreter and prints what came of it, one JSON line a kernel.

    python -m tests.ops.interpreted [EXAMPLES]

EXAMPLES is how many of each kernel to run, those first that show most; all without it.

Run in a process of its own: the interpreter must be asked for before a kernel is defined.
"""

import copy
import functools
import json
import sys
import time
import traceback
import warnings

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from penstock.runtime.ops.attention import attention
from penstock.runtime.ops.kinds.latent import latent_attention
from penstock.runtime.ops.triton import decode
from penstock.runtime.ops.triton.attend.runs import paged_attention
from penstock.runtime.ops.triton.kinds.latent import attend_latents
from tests.ops.covering import covering
from tests.ops.examples import arguments_of
from tests.ops.parity import cases, has_dtype, same
from tests.ops.recorded import NAME, padded_examples

_plain_conversion = interpreter._convert_float


def _convert(numbers, source, target, rounding):
    """The interpreter's own rounding to 8 bits loses the carry into the exponent; torch's does not."""
    if target != tl.float8e4nv or source not in (tl.float32, tl.float16):
        return _plain_conversion(numbers, source, target, rounding)
    floats = torch.from_numpy(np.ascontiguousarray(numbers)).float()
    finite = torch.where(floats.isnan(), floats, floats.clamp(-448, 448))
    return finite.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(numbers.shape)


def _verdict(op, kernel, most: int | None) -> str:
    examples = [example for example in arguments_of(op) if kernel.fits(*example)]
    examples = [example for example in examples if not has_dtype(example, torch.bfloat16)]  # products go wrong there
    for arguments in covering(examples)[:most]:
        mine, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
        same(kernel.run(*mine), op.definition(*theirs))
        same(mine, theirs)
    return "equal" if examples else "fits nothing here"


def _recorded_verdict() -> str:
    for op, kernel in ((attention, paged_attention), (latent_attention, attend_latents)):
        for arguments, truth, places in padded_examples(op):
            same(kernel(*arguments)[places], truth)
    return "equal"


def main() -> None:
    most = int(sys.argv[1]) if sys.argv[1:] else None
    torch.set_num_threads(1)
    interpreter._convert_float = _convert
    decode.PROGRAMS = 12  # a chip this small splits keys in two or four, not in dozens of runs, most of them empty
    torch.use_deterministic_algorithms(True)  # what nobody wrote is NaN in every run, not what was there before
    # Sums over nothing and over hidden keys begin at -inf, and padding joins what nobody wrote: numpy remarks on it.
    warnings.simplefilter("ignore", category=RuntimeWarning)
    trials = {
        kernel.name: functools.partial(_verdict, op, kernel, most)
        for op, device_type, kernel in cases()
        if device_type == "cuda"
    }
    for name, trial in {**trials, NAME: _recorded_verdict}.items():
        begun = time.process_time()
        try:
            verdict = trial()
        except Exception:
            verdict = traceback.format_exc()
        took = round(time.process_time() - begun, 2)
        print(json.dumps({"kernel": name, "verdict": verdict, "seconds": took}), flush=True)


if __name__ == "__main__":
    main()
