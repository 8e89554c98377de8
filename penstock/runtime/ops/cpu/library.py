"""The native library: finding it, its structs, its threads.

It is compiled when Penstock is installed with a C++ compiler at hand and chooses its kernels by the machine it runs on.
Without it the torch definitions compute everything. The structs here repeat `native/abi.h`, and are compared with it when the
library is loaded.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.errors import EngineError, StepInterruptedError
from penstock.runtime.ops.quantized.int8 import PackedInt8
from penstock.runtime.ops.quantized.packed import Packed

ABI = 7
HALVES = 2
"""Numbers of 16 bits in a word of a bitmask: a mask is read so many tokens at a time."""
BEYOND = 2
"""Status of a step that reaches beyond a row."""
INTERRUPTED = 3
LOST = 4
"""Status of a step that missed a rank."""
KERNELS = ("portable", "avx2", "avx512", "amx", "amx-emulated")
"""Families of kernels; the last is chosen by name alone."""
AVX2, AVX512, AMX = 1, 2, 4
"""What a machine may have."""


PARTS = ("start", "read", "qkv", "place", "attention", "out", "gate_up", "down", "end", "output")
"""Of a step, as the library numbers them; each mark is made when its part ends."""


def _fields(*runs: tuple[Any, str]) -> tuple[tuple[str, Any], ...]:
    """Names of fields in runs of one type."""
    return tuple((name, kind) for kind, names in runs for name in names.split())


class Mark(Structure):
    """The first thread ended a part of a step."""

    _fields_ = _fields((c_int64, "time_ns"), (c_int32, "part layer"))


class Matrix(Structure):
    _fields_ = _fields((c_void_p, "data bias row_scales"), (c_int32, "bits has_minimum num_rows num_columns"))


class NativeLayer(Structure):
    _fields_ = _fields(
        (Matrix, "qkv out gate_up down"),
        (c_void_p, "attention_norm attention_post_norm mlp_norm mlp_post_norm q_norm k_norm"),
        (c_void_p, "keys values key_scales value_scales"),
        (c_int32, "window rotation"),
        (c_float, "scale softcap"),
        (c_int32, "table"),
    )


class NativeModel(Structure):
    _fields_ = _fields(
        (POINTER(NativeLayer), "layers"),
        (c_void_p, "norm"),
        (Matrix, "embedding output"),
        (c_int32, "num_layers hidden_size num_heads num_kv_heads head_dim"),
        (c_int32, "rotary_dim mlp_width block_size activation invariant"),
        (c_float, "eps embedding_scale logit_softcap"),
        (c_int32, "block_stride"),
    )


class NativeStep(Structure):
    _fields_ = _fields(
        (c_void_p, "token_ids slots block_tables query_starts contexts"),
        (POINTER(c_void_p), "cosines sines"),
        (c_void_p, "hidden"),
        (c_int32, "num_tokens num_chunks table_stride reserved"),
    )


class RowsStep(Structure):
    """Repeats `native/rows.h`."""

    _fields_ = _fields(
        (c_void_p, "tokens tables num_blocks"),
        (POINTER(c_void_p), "cosines sines"),
        (c_void_p, "chunks hidden drawn"),
        (c_int32, "token_stride table_stride num_rotations num_chunks draws yields num_tables"),
    )


class Product(Structure):
    _fields_ = _fields((c_void_p, "x out likeliest"), (c_int32, "num_rows number invariant"), (c_float, "softcap"))


class Allowed(Structure):
    """Repeats `native/step.h`."""

    _fields_ = _fields((c_void_p, "bits masks"), (c_int64, "stride"))


ADD_UP = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64)
"""Adds up some floats over all ranks, in place; what it returns is not zero if a rank was lost."""


class Sharing(Structure):
    """Repeats `native/step.h`."""

    _fields_ = _fields((ADD_UP, "add_up"), (c_void_p, "inputs"), (c_int64, "first_token"))


class AdapterPart(Structure):
    """Repeats `native/adapted.h`, as all that follow."""

    _fields_ = _fields((c_void_p, "a b"), (c_int32, "rank first size reserved"))


class AdapterMatrix(Structure):
    _fields_ = _fields((AdapterPart * 3, "parts"), (c_void_p, "factors"), (c_int32, "num_parts reserved"))


class AdapterLayer(Structure):
    _fields_ = _fields((AdapterMatrix, "qkv out gate_up down"))


class NativeAdapter(Structure):
    _fields_ = _fields(
        (POINTER(AdapterLayer), "layers"), (c_void_p, "embedding left right"), (c_int32, "rank reserved")
    )


class Adaptation(Structure):
    """Whose adapters a step's tokens have, or the rows it is told by."""

    _fields_ = _fields((c_void_p, "adapters"), (c_int32, "shrunk_size reserved"))


STRUCTS = (Matrix, NativeLayer, NativeModel, NativeStep, RowsStep, Product)
"""In the order in which the library lists them."""

_POINTERS = [(c_void_p,) * count for count in range(6)]
SIGNATURES: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("open", c_void_p, (c_int32, c_char_p)),
    ("kernels", c_char_p, _POINTERS[1]),
    ("close", None, _POINTERS[1]),
    ("choose", c_char_p, (c_char_p, c_int32)),
    *((name, c_int32, _POINTERS[3]) for name in ("step", "rows", "product")),
    *((name, c_int32, _POINTERS[4]) for name in ("choose_allowed", "shared_step", "adapted_rows")),
    *((name, c_int32, _POINTERS[5]) for name in ("attention", "adapted_step")),
    ("interrupt", None, (c_void_p, c_int32)),
    ("trace", c_int64, (c_void_p, c_void_p, c_int64)),
)
"""Functions of the library, without `penstock_`: what they give and take."""


class Library:
    """The library with threads of its own. Calls run one at a time."""

    def __init__(self, handle: ctypes.CDLL, context: int, kernels: str) -> None:
        self._handle = handle
        self._context = context
        self.kernels = kernels

    def __del__(self) -> None:
        self._handle.penstock_close(self._context)

    def step(self, model: NativeModel, step: NativeStep) -> None:
        self._check(self._handle.penstock_step(self._context, ctypes.byref(model), ctypes.byref(step)))

    def shared_step(self, model: NativeModel, step: NativeStep, sharing: Sharing) -> bool:
        """False, with nothing of use computed, if a rank was lost meanwhile."""
        return self._step_with_others(self._handle.penstock_shared_step, model, step, sharing)

    def _step_with_others(self, function: Callable[..., int], *arguments: ctypes.Structure) -> bool:
        status = function(self._context, *map(ctypes.byref, arguments))
        if status != LOST:
            self._check(status)
        return status != LOST

    def adapted_step(self, model: NativeModel, step: NativeStep, sharing: Sharing, adaptation: Adaptation) -> bool:
        """As `shared_step`, of which some tokens have adapters."""
        return self._step_with_others(self._handle.penstock_adapted_step, model, step, sharing, adaptation)

    def step_rows(self, model: NativeModel, step: RowsStep, adaptation: Adaptation | None = None) -> bool:
        """False, with nothing done, if a chunk reaches beyond its row's blocks. Raises StepInterruptedError if it yields and
        is interrupted."""
        arguments = self._context, ctypes.byref(model), ctypes.byref(step)
        if adaptation is None:
            status = self._handle.penstock_rows(*arguments)
        else:
            status = self._handle.penstock_adapted_rows(*arguments, ctypes.byref(adaptation))
        if status == BEYOND:
            return False
        if status == INTERRUPTED:
            raise StepInterruptedError("the step was interrupted; launch it again")
        self._check(status)
        return True

    def interrupt(self, *, is_on: bool) -> None:
        """From any thread: steps that yield are left halfway, from now on and until told otherwise."""
        self._handle.penstock_interrupt(self._context, is_on)

    def trace(self, capacity: int) -> "ctypes.Array[Mark]":
        """Room for that many marks, which steps fill from now on."""
        marks = (Mark * capacity)()
        self._handle.penstock_trace(self._context, marks, capacity)
        return marks

    def end_trace(self) -> int:
        """Steps note nothing any more; how many marks they made."""
        return int(self._handle.penstock_trace(self._context, None, 0))

    def multiply(
        self,
        x: Tensor,
        matrix: Matrix,
        *,
        number: int = 0,
        is_invariant: bool = False,
        softcap: float = 0.0,
        out: Tensor | None = None,
    ) -> Tensor:
        """x [rows, columns] in float32 times a packed matrix; `number` asks for rows of bytes (8) or of bf16 (16)."""
        x = x.contiguous()
        out = torch.empty((len(x), matrix.num_rows)) if out is None else out
        self._multiply(matrix, Product(x.data_ptr(), out.data_ptr(), None, len(x), number, is_invariant, softcap))
        return out

    def likeliest(
        self, x: Tensor, matrix: Matrix, *, is_invariant: bool = False, allowed: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Of each row of the product the place of its largest number, the first of equals; -1 if it is not finite.

        `allowed` are bitmasks, int32 [masks, words], and which of them holds for each row, int64, -1 for none: places whose
        bit is not set are passed over, and -2 stands where none is left.
        """
        x = x.contiguous()
        places = torch.empty(len(x), dtype=torch.int64)
        product = Product(x.data_ptr(), None, places.data_ptr(), len(x), 0, is_invariant, 0.0)
        if allowed is None or not len(x):
            self._multiply(matrix, product)
            return places
        bits, masks = (part.contiguous() for part in allowed)
        masked = Allowed(bits.data_ptr(), masks.data_ptr(), bits.shape[1] * HALVES)
        self._check(
            self._handle.penstock_choose_allowed(
                self._context, ctypes.byref(matrix), ctypes.byref(product), ctypes.byref(masked)
            )
        )
        return places

    def _multiply(self, matrix: Matrix, product: Product) -> None:
        if product.num_rows:
            self._check(self._handle.penstock_product(self._context, ctypes.byref(matrix), ctypes.byref(product)))

    def attend(self, model: NativeModel, step: NativeStep, qkv: Tensor) -> Tensor:
        """Attention of the model's first layer; qkv [tokens, q then k then v] is normed and rotated in place."""
        out = torch.empty((len(qkv), model.num_heads * model.head_dim))
        arguments = ctypes.byref(model), ctypes.byref(step), c_void_p(qkv.data_ptr()), c_void_p(out.data_ptr())
        self._check(self._handle.penstock_attention(self._context, *arguments))
        return out

    def _check(self, status: int) -> None:
        if status:
            raise EngineError("the native library could not get memory for a step; lower --max-batch-tokens")


def open_library(num_threads: int, kernels: str = "") -> Library | None:
    """The library, running the kernels named, or the fastest; None where it was not built or the machine lacks them."""
    handle = _load()
    context = handle.penstock_open(num_threads, kernels.encode()) if handle is not None else None
    if handle is None or context is None:
        return None
    return Library(handle, context, handle.penstock_kernels(context).decode())


def matrix_of(packed: Packed, bias: Tensor | None = None) -> Matrix:
    """Borrows the memory of both."""
    data = packed.data.data_ptr()
    return Matrix(
        data,
        None if bias is None else bias.data_ptr(),
        data + packed.num_value_bytes if isinstance(packed, PackedInt8) else None,
        packed.bits,
        packed.has_minimum,
        packed.num_rows,
        packed.num_columns,
    )


def choose(kernels: str, features: int) -> str | None:
    """The kernels that a machine with these features would run when asked for those, or for the fastest with none named."""
    handle = _load()
    name = None if handle is None else handle.penstock_choose(kernels.encode(), features)
    return None if name is None else str(name.decode())


def check_layout(sizes: Sequence[int], structs: Sequence[type[Structure]] = STRUCTS) -> None:
    """Raises unless the structs here lie in memory as the library says that its own do."""
    at = 0
    for struct in structs:
        fields = [name for name, *_ in struct._fields_]
        mine = [ctypes.sizeof(struct), *(getattr(struct, name).offset for name in fields)]
        theirs = list(sizes[at : at + len(mine)])
        if mine != theirs:
            names = ["its size", *fields]
            differing = [name for name, here, there in zip_longest(names, mine, theirs) if here != there]
            raise EngineError(
                f"the native library lays out {struct.__name__} otherwise ({', '.join(map(str, differing))}); build it anew: "
                "python setup.py build_ext --inplace"
            )
        at += len(mine)
    if at != len(sizes):
        raise EngineError("the native library has structs that are not known here; install Penstock again")


@cache
def _load() -> ctypes.CDLL | None:
    for path in sorted(Path(__file__).parent.glob("_native*.so")):
        try:
            handle = ctypes.CDLL(str(path))
            if handle.penstock_abi() != ABI:
                continue
            numbers = POINTER(c_int32)()
            num_numbers = handle.penstock_layout(ctypes.byref(numbers))
        except (OSError, AttributeError):  # built for another machine
            continue
        check_layout(numbers[:num_numbers])
        if not all(hasattr(handle, f"penstock_{name}") for name, _, _ in SIGNATURES):
            raise EngineError(
                "the native library is older than this code; build it anew: python setup.py build_ext --inplace"
            )
        for name, restype, argtypes in SIGNATURES:
            function = getattr(handle, f"penstock_{name}")
            function.restype, function.argtypes = restype, argtypes
        return handle
    return None
