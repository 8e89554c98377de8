"""Adapters made ready for a runner: its model's sublayers swapped, its rows told which adapter they have."""

from penstock.config import AdapterConfig
from penstock.errors import ConfigError
from penstock.runtime.execution.adapters.modules import ModuleBank
from penstock.runtime.execution.adapters.slots import AdapterBank, AdapterSlots
from penstock.runtime.execution.eager.runner import StepRunner
from penstock.runtime.execution.native.adapters import NativeBank
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.layers.adapted.step import AdapterStep
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.sharding import ModelShard


def adapt(
    runner: StepRunner, network: object, config: AdapterConfig, max_sequences: int, shard: ModelShard | None = None
) -> AdapterSlots | None:
    """None where no adapters are served: the model stays as it is."""
    if not config.are_served:
        return None
    step = AdapterStep()
    bank: AdapterBank
    if isinstance(network, NativeDecoder):
        bank = NativeBank(network, config.max_adapters)
    elif isinstance(network, Decoder):
        whole = network.spec if shard is None else shard.whole
        bank = ModuleBank(network, whole, step, config.max_adapters, config.max_adapter_rank, shard)
    else:
        raise ConfigError("adapters over this model are not served; leave --adapter out")
    spec = network.spec
    slots = AdapterSlots(
        bank,
        spec if shard is None else shard.whole,
        num_slots=config.max_adapters,
        max_rank=config.max_adapter_rank,
        num_rows=max_sequences + 1,
        device=network.device,
        shard=shard,
        step=step,
    )
    runner.adapters = slots
    return slots
