"""Adapters made ready for a runner: its model's sublayers swapped, its rows told which adapter they have."""

from penstock.config import AdapterConfig
from penstock.errors import ConfigError
from penstock.runtime.execution.adapters.modules import ModuleBank
from penstock.runtime.execution.adapters.slots import AdapterBank, AdapterSlots
from penstock.runtime.execution.eager.runner import StepRunner
from penstock.runtime.execution.native.adapters import NativeBank
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.execution.parallel.native import NativePart
from penstock.runtime.execution.parallel.stage import StagedDecoder
from penstock.runtime.layers.adapted.step import AdapterStep
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.sharding import ModelShard


def adapt(
    runner: StepRunner, network: object, config: AdapterConfig, max_sequences: int, shard: ModelShard | None = None
) -> AdapterSlots | None:
    """None where no adapters are served: the model stays as it is. `shard` is the rank's part of a model of several ranks."""
    if not config.are_served:
        return None
    step = AdapterStep()
    bank: AdapterBank
    if isinstance(network, NativePart):
        bank = NativeBank(network.decoder, config.max_adapters, is_cut=network.shard.place.ranks.tensor > 1)
        network.adapt(bank, step)
        spec, shard = network.shard.whole, network.shard
    elif isinstance(network, NativeDecoder):
        bank, spec = NativeBank(network, config.max_adapters), network.spec
    elif isinstance(network, Decoder | StagedDecoder):
        model = network.model if isinstance(network, StagedDecoder) else network
        spec = network.spec if shard is None else shard.whole
        bank = ModuleBank(model, spec, step, config.max_adapters, config.max_adapter_rank, shard)
    else:
        raise ConfigError("adapters over this model are not served; leave --adapter out")
    read_for = spec, config.max_adapter_rank, shard
    slots = AdapterSlots(bank, read_for, config.max_adapters, max_sequences + 1, network.device, step)
    runner.adapters = slots
    return slots
