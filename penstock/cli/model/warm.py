"""`penstock warm`: a model's kernels compiled before anybody serves it."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Config:
    """Compile all kernels that serving a model on this GPU needs, and leave them in a folder.

    Only the model's description is read, no weights. Ship the folder in an image, or from one replica to the next, and name
    it to the server: TRITON_CACHE_DIR=DIR penstock serve MODEL. It holds for this kind of GPU and these versions; elsewhere it
    is not used and does no harm.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    out: Path | None = None
    """Folder to write (default: where Triton keeps what it compiles)"""
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)


def run(config: Config) -> int:
    if config.out is not None:
        config.out.mkdir(parents=True, exist_ok=True)
        os.environ["TRITON_CACHE_DIR"] = str(config.out.resolve())
    from penstock.assembly.kernels import compile_kernels
    from penstock.runtime.execution.device import open_device
    from penstock.runtime.files import dummy_spec, open_files

    begun = time.monotonic()
    device = open_device(config.model.device)
    if device.torch_device.type != "cuda":
        raise ConfigError("kernels are compiled for a GPU, and none is here; a CPU needs no warming")
    spec = dummy_spec(config.model.model) or open_files(config.model.model).spec
    count = compile_kernels(EngineConfig(config.model, config.cache, config.scheduler), spec, device, wait=True)
    print(f"{count} kernels for {device.name} in {time.monotonic() - begun:.1f} s")
    return 0
