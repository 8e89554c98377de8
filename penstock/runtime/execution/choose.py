"""Which runner computes a network: one table of networks and devices."""

from typing import Any

import torch

from penstock.errors import ConfigError
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.cuda.runner import CudaRunner
from penstock.runtime.execution.eager.runner import ModelRunner, StepRunner
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.execution.native.runner import NativeRunner
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.kinds.parts import can_record

RUNNERS: dict[tuple[type, str], Any] = {
    (NativeDecoder, "cpu"): NativeRunner,
    (Decoder, "cpu"): ModelRunner,
    (Decoder, "cuda"): CudaRunner,
}
"""By type of network and of device. Each takes the network, a shape and the number type of its cache."""


def make_runner(network: object, shape: RunnerShape, cache_dtype: torch.dtype | None = None) -> StepRunner:
    """The runner of a whole model that one process computes; its `depth` says how many steps it is worth having under way."""
    device = getattr(network, "device", None)
    runner = RUNNERS.get((type(network), device.type)) if isinstance(device, torch.device) else None
    if runner is CudaRunner and isinstance(network, Decoder) and not can_record(network.spec):
        runner = ModelRunner
    if runner is None:
        raise ConfigError(f"a {type(network).__name__} does not generate text in one process")
    made: StepRunner = runner(network, shape, cache_dtype)
    return made
