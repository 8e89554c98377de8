"""Compiles every CUDA kernel for a Hopper GPU, as its examples would launch it, on a machine that need not have one.

The interpreter is lenient about types where the compiler is not. What examples hold in float16 is compiled for bfloat16, which
is what models are served in. Prints one JSON line a kernel.
"""

import copy
import json
import traceback
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from penstock.runtime.ops.attention import attention
from tests.ops.covering import covering
from tests.ops.examples import arguments_of
from tests.ops.parity import cases, has_dtype
from tests.ops.recorded import padded_examples

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*bf16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
}
SHORT = (torch.float16, torch.float8_e4m3fn, torch.int8)
GPU_ONLY = {"CHAINS": True, "NATIVE": True}
"""Ways a kernel goes on a GPU alone."""
compiled: set[str] = set()


class Compilation:
    """Stands where a launch would be."""

    def __init__(self, kernel: JITFunction, grid: object) -> None:
        self.kernel = kernel

    def __call__(self, *values: Any, **named: Any) -> None:
        options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
        arguments = dict(zip(self.kernel.arg_names, values)) | named | GPU_ONLY
        types: dict[str, str] = {}
        constants: dict[str, Any] = {}
        for parameter in self.kernel.params:
            value = arguments[parameter.name]
            is_constant = parameter.is_constexpr or value is None or _is_one(parameter, value)
            types[parameter.name] = "constexpr" if is_constant else _type(value)
            if types[parameter.name] == "constexpr":
                constants[parameter.name] = value
        # Sizes do not change what types meet; switches do.
        switches = {name: value for name, value in constants.items() if not isinstance(value, int) or value in (0, 1)}
        key = f"{self.kernel.__name__} {types} {switches}"
        if key not in compiled:
            triton.compile(ASTSource(self.kernel, types, constants), target=HOPPER, options=options)
            compiled.add(key)


def _is_one(parameter: Any, value: Any) -> bool:
    """The compiler takes a 1 as a constant unless it is told not to."""
    return isinstance(value, int) and value == 1 and not parameter.do_not_specialize


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{POINTERS[value.base.dtype][1:]}{value.block_shape}>"
    return "fp32" if isinstance(value, float) else "i32"


def main() -> None:
    JITFunction.__getitem__ = lambda kernel, grid: Compilation(kernel, grid)
    for op, device_type, kernel in cases():
        if device_type != "cuda":
            continue
        examples = [example for example in arguments_of(op) if kernel.fits(*example)]
        served = [example for example in examples if any(has_dtype(example, dtype) for dtype in SHORT)] or examples
        try:
            for arguments in covering(served):
                kernel.run(*copy.deepcopy(arguments))
            if op is attention:
                for arguments, _, _ in padded_examples():
                    kernel.run(*arguments)
            verdict = "compiled" if examples else "fits nothing here"
        except Exception:
            verdict = traceback.format_exc()
        print(json.dumps({"kernel": kernel.name, "verdict": verdict}), flush=True)


if __name__ == "__main__":
    main()
