"""What can be wrong with a machine: a table of checks over its environment, from silicon to gateway."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from penstock.amounts import format_bytes
from penstock.tools.doctor.environment import Environment
from penstock.tools.doctor.finding import Finding, ServiceLayer, Verdict

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
GIB = 1024**3
LEAST_BYTES = 1 * GIB
"""Torch, the default model and a little cache."""
ENOUGH_BYTES = 2 * GIB
STORE_BYTES = GIB // 4
"""The default model, while it is unpacked."""
REBUILD = "pip install --no-deps --force-reinstall -e . in the folder of Penstock's source"
SPARE_FILES = 200
"""Beside its connections a server has files of its own open."""


class Judgement(NamedTuple):
    verdict: Verdict
    evidence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class MachineCheck:
    id: str
    layer: ServiceLayer
    subject: str
    judge: Callable[[Environment], Judgement]


def examine(environment: Environment) -> tuple[Finding, ...]:
    judged = ((check, check.judge(environment)) for check in CHECKS)
    return tuple(Finding(check.id, check.layer, seen.verdict, check.subject, *seen[1:]) for check, seen in judged)


_ok, _warning, _fault = (partial(Judgement, verdict) for verdict in Verdict)


# Silicon


def _cores(found: Environment) -> Judgement:
    quota, threads = found.quota_cores, found.torch.num_threads
    usable = found.num_cores if quota is None else min(float(found.num_cores), quota)
    evidence = f"{found.num_cores} cores" + ("" if quota is None else f", {quota:g} of their time")
    evidence += f", {threads} threads compute" if threads else ""
    if threads > max(usable, 1.0):
        return _warning(
            evidence, f"start with OMP_NUM_THREADS={max(int(usable), 1)}: threads that share a core wait idly"
        )
    if threads and threads < usable // 2:
        return _warning(evidence, "unset OMP_NUM_THREADS, or raise it to the number of physical cores")
    return _ok(evidence)


def _throttling(found: Environment) -> Judgement:
    fraction = found.throttled_fraction
    if fraction is None:
        return _ok("no limit on processor time")
    evidence = f"out of processor time in {100 * fraction:.1f} % of periods"
    if fraction > 0.05:
        return _warning(evidence, "raise the container's CPU limit, or compute with fewer threads (OMP_NUM_THREADS)")
    return _ok(evidence)


def _load(found: Environment) -> Judgement:
    evidence = f"load {found.load:.1f} on {found.num_cores} cores in the last minute"
    if found.load > 0.75 * found.num_cores:
        return _warning(evidence, "stop what else computes here (ps aux --sort=-%cpu names it), or measure later")
    return _ok(evidence)


def _memory(found: Environment) -> Judgement:
    evidence = f"{format_bytes(found.available_bytes)} available"
    if found.available_bytes < LEAST_BYTES:
        return _fault(evidence, "free memory or raise the container's limit: even the default model takes 1 GiB")
    if found.available_bytes < ENOUGH_BYTES:
        return _warning(evidence, "the cache will be small: free memory, or keep to short answers (--max-context)")
    return _ok(evidence)


def _swap(found: Environment) -> Judgement:
    evidence = f"{format_bytes(found.swap_used_bytes)} of swap in use"
    if found.swap_used_bytes > GIB // 4:
        return _warning(evidence, "free memory: weights that are swapped out cost seconds a token")
    return _ok(evidence)


def _clock(found: Environment) -> Judgement:
    evidence = (
        f"{1e9 * found.clock_read_s:,.0f} ns a clock reading, wall clock moved by {1e3 * found.clock_drift_s:,.1f} ms"
    )
    if found.clock_read_s > 2e-6:
        return _warning(
            evidence, "let the kernel use the processor's counter (clocksource tsc): each step reads it often"
        )
    if found.clock_drift_s > 0.1:
        return _warning(evidence, "see to the time service: the wall clock is being set; latencies are not affected")
    return _ok(evidence)


# Drivers


def _cuda(found: Environment) -> Judgement:
    torch = found.torch
    if torch.is_cuda:
        return _ok(f"{torch.device}, {format_bytes(torch.free_bytes)} free; torch for CUDA {found.torch_cuda}")
    if not found.num_gpus and not found.driver_cuda:
        return _ok("no NVIDIA GPU; the CPU computes")
    evidence = f"{found.num_gpus} GPUs, a driver for CUDA {found.driver_cuda or 'unknown'}, "
    if not found.torch_cuda:
        return _warning(
            evidence + "torch without CUDA", "install the torch that is built for CUDA, from PyTorch's own index"
        )
    evidence += f"torch for CUDA {found.torch_cuda} that finds no device"
    if found.driver_cuda and version_of(found.driver_cuda) < version_of(found.torch_cuda):
        return _fault(evidence, f"update the driver, or install the torch for CUDA {found.driver_cuda}")
    return _fault(evidence, "see that CUDA_VISIBLE_DEVICES is not empty and that this user may open /dev/nvidia*")


# Packaging


def _python(found: Environment) -> Judgement:
    evidence = ".".join(map(str, found.python))
    if found.python[:2] < OLDEST_PYTHON:
        return _fault(evidence, "install Python 3.11 or newer")
    return _ok(evidence)


def _torch(found: Environment) -> Judgement:
    if not found.torch_version:
        return _fault("not installed", "pip install 'torch>=2.11'")
    if found.torch.fault:
        return _fault(f"{found.torch_version}: {found.torch.fault}", "reinstall torch: it does not start here")
    if version_of(found.torch_version) < OLDEST_TORCH:
        return _fault(found.torch_version, "pip install 'torch>=2.11'")
    return _ok(found.torch_version)


def _native(found: Environment) -> Judgement:
    kernels = found.torch.kernels
    if found.torch.fault:
        return _warning("not tried, since torch does not start", "see to torch first")
    if not kernels:
        state = "built but does not load here" if found.has_native_file else "not built"
        evidence = f"{state}: torch widens quantized weights to 32 bits and reads four to seven times the bytes a token"
        return _warning(evidence, f"install a C++ compiler, then {REBUILD}")
    evidence = f"{KERNELS.get(kernels, kernels)}; the processor has {_instructions(found)}"
    if kernels == "portable" and "avx2" in found.instructions:
        return _warning(evidence, f"install a newer C++ compiler, then {REBUILD}")
    return _ok(evidence)


KERNELS = {"portable": "plain C++", "avx2": "AVX2", "avx512": "AVX-512 VNNI", "amx": "AMX and AVX-512 VNNI"}


def _instructions(found: Environment) -> str:
    known = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "BF16", "amx_int8": "AMX"}
    return ", ".join(name for flag, name in known.items() if flag in found.instructions) or "none of AVX2, AVX-512, AMX"


def _store(found: Environment) -> Judgement:
    evidence = f"{found.store}, {format_bytes(found.store_free_bytes)} free"
    if found.store_fault:
        return _fault(f"{found.store}: {found.store_fault}", "make it writable, or set HOME to where there is room")
    if found.has_default_model:
        return _ok(evidence + ", the default model is there")
    if found.store_free_bytes < STORE_BYTES:
        return _fault(evidence, "make room: the default model takes a quarter of a gibibyte while it is fetched")
    return _ok(evidence)


# Gateway


def _files(found: Environment) -> Judgement:
    evidence = f"{found.max_files:,} files may be open, {found.max_connections:,} calls are admitted"
    if found.max_files < found.max_connections + SPARE_FILES:
        return _warning(evidence, "raise the hard limit (ulimit -Hn), or admit fewer: --max-waiting, --max-sequences")
    return _ok(evidence)


def _port(found: Environment) -> Judgement:
    if found.port_fault:
        return _warning(f"{found.port}: {found.port_fault}", "stop what listens there, or serve with another --port")
    return _ok(f"{found.port} is free")


def _temporary(found: Environment) -> Judgement:
    if found.temporary_fault:
        return _fault(
            f"{found.temporary}: {found.temporary_fault}", "set TMPDIR to a short path that this user may write"
        )
    return _ok(f"{found.temporary} takes private sockets")


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu is (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


CHECKS: tuple[MachineCheck, ...] = (
    MachineCheck("cores", ServiceLayer.L0, "cores and threads", _cores),
    MachineCheck("throttling", ServiceLayer.L0, "processor time", _throttling),
    MachineCheck("load", ServiceLayer.L0, "other load", _load),
    MachineCheck("memory", ServiceLayer.L0, "memory", _memory),
    MachineCheck("swap", ServiceLayer.L0, "swap", _swap),
    MachineCheck("clock", ServiceLayer.L0, "clock", _clock),
    MachineCheck("cuda", ServiceLayer.L1, "CUDA", _cuda),
    MachineCheck("python", ServiceLayer.L2, "Python", _python),
    MachineCheck("torch", ServiceLayer.L2, "torch", _torch),
    MachineCheck("native", ServiceLayer.L2, "native CPU library", _native),
    MachineCheck("store", ServiceLayer.L2, "model store", _store),
    MachineCheck("files", ServiceLayer.L5, "open files", _files),
    MachineCheck("port", ServiceLayer.L5, "port", _port),
    MachineCheck("temporary", ServiceLayer.L5, "temporary files", _temporary),
)
