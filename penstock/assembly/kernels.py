"""Kernels that a model's steps will need, compiled while its weights are read."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread

from penstock.config import EngineConfig
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.adapters.adapt import adapt
from penstock.runtime.execution.cuda.runner import CudaRunner
from penstock.runtime.execution.device import Device
from penstock.runtime.execution.kv_cache import CACHE_DTYPES
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.execution.load.quantize import quantize_fp8
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.kinds.parts import can_record
from penstock.runtime.models.spec import ModelSpec

LOGGER = logging.getLogger(__name__)

FEW_BLOCKS = 16
"""Of a cache that nothing is kept in: how many there are decides no kernel."""


def compile_kernels(config: EngineConfig, spec: ModelSpec, device: Device, *, wait: bool = False) -> int:
    """Ask for all kernels of a model with one layer of each kind, its numbers made up; they are compiled by other processes.

    Returns how many there are."""
    short = replace(spec, layers=tuple(dict.fromkeys(spec.layers)))
    network = dummy_model(short, device.torch_device, device.dtype(config.model.dtype))
    if not isinstance(network, Decoder) or not can_record(spec):
        return 0
    if config.model.weights == "fp8":
        quantize_fp8(network)
    max_context = config.model.max_context or spec.max_context
    shape = RunnerShape(FEW_BLOCKS, config.cache.block_size, config.scheduler.max_sequences, max_context)
    runner = CudaRunner(network, shape, CACHE_DTYPES[config.cache.kv])
    adapt(runner, network, config.adapter, shape.max_sequences)
    requests = runner.compile_all()
    for request in requests if wait else ():
        request.are_ready(wait=True)
    return sum(request.num_variants for request in requests)


@contextmanager
def compiled_meanwhile(config: EngineConfig, spec: ModelSpec, device: Device, warms_up: bool) -> Iterator[None]:
    """The same beside what is done inside, on a GPU that warms up, and not longer: what comes afterwards launches some kernels,
    or measures what memory is free."""

    def run() -> None:
        try:
            compile_kernels(config, spec, device)
        except Exception as error:  # steps ask for kernels again when they need them
            LOGGER.debug("kernels were not compiled ahead: %s", error)

    thread = Thread(target=run, name="kernels", daemon=True)
    is_begun = warms_up and device.torch_device.type == "cuda"
    if is_begun:
        thread.start()
    try:
        yield
    finally:
        if is_begun:
            thread.join()
