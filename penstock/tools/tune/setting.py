"""A setting: what of a server may be tuned, and the hundreds of combinations that are tried."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, NamedTuple

from penstock.config import KV, CacheConfig, EngineConfig, ParallelConfig, SchedulerConfig, Weights, bytes_of
from penstock.runtime.sizing import Sizing

BATCH_TOKENS = (None, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SEQUENCES = (4, 8, 16, 32, 64, 128, 256)
WAITING = (1024, 64, 16, 4)
BLOCK_SIZES = (16, 32, 64)
HOST_TIER = "4GiB"
KV_MEMORY = (None, "256MiB", "2GiB", "4GiB")


def flags_in_words(changes: Mapping[str, Any]) -> str:
    """What differs from the default, as flags of `serve`."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())


@dataclass(frozen=True, slots=True)
class Setting:
    """What is asked of `serve`, by its flags; the defaults are serve's own."""

    max_batch_tokens: int | None = None
    max_sequences: int = 256
    max_waiting: int = 1024
    block_size: int = 16
    kv_memory: str | None = None
    kv: KV = "auto"
    kv_host: str | None = None
    weights: Weights = "auto"
    speculate: str | None = None
    tensor: int = 1
    replicas: int = 1

    @property
    def changes(self) -> dict[str, Any]:
        """What differs from the default, by flag."""
        pairs = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return {name: value for name, value, default in pairs if value != default}

    @property
    def flags(self) -> list[str]:
        return [word for name, value in self.changes.items() for word in (f"--{name.replace('_', '-')}", str(value))]

    @property
    def label(self) -> str:
        return flags_in_words(self.changes) or "default"

    def engine(self, base: EngineConfig) -> EngineConfig:
        """The engine that such a server has, but for speculation and tiers, which a simulation leaves out."""
        return replace(
            base,
            model=replace(base.model, weights=self.weights) if self.weights != "auto" else base.model,
            cache=CacheConfig(block_size=self.block_size, kv_memory=self.kv_memory, kv=self.kv),
            scheduler=SchedulerConfig(
                max_batch_tokens=self.max_batch_tokens, max_sequences=self.max_sequences, max_waiting=self.max_waiting
            ),
            parallel=ParallelConfig(tensor=self.tensor),
        )

    def sizing(self, measured: Sizing) -> Sizing:
        """The blocks it has, given those of an engine that was measured at the default setting."""
        block_bytes = measured.block_bytes * self.block_size // measured.block_size
        if self.kv != "auto":
            block_bytes //= 2
        kv_bytes = measured.kv_bytes
        if self.kv_memory is not None:
            room = measured.free_bytes - measured.weight_bytes - measured.workspace_bytes
            kv_bytes = min(bytes_of("--kv-memory", self.kv_memory), max(room, kv_bytes))
        kept = measured.num_kept_blocks
        if kept is not None:
            kept = max(kept * measured.block_bytes // block_bytes, 1)
        return replace(
            measured,
            block_size=self.block_size,
            block_bytes=block_bytes,
            num_blocks=max(kv_bytes // block_bytes, 1),
            num_kept_blocks=kept,
            is_mixed=measured.is_mixed and self.max_batch_tokens is None,
        )


DEFAULT = Setting()


class TunedMachine(NamedTuple):
    """What of a machine decides which settings make sense on it."""

    is_gpu: bool
    num_processors: int
    num_gpus: int
    max_context: int
    measured: Sizing
    has_link: bool = False
    """What ranks exchange was measured, so layouts of several can be simulated."""


def settings(machine: TunedMachine) -> list[Setting]:
    """All that are simulated, the default first. Those that cannot be are left out."""
    replicas = [count for count in (1, 2, 4, 8) if count <= (machine.num_gpus if machine.is_gpu else 2)]
    layouts = [(1, count) for count in replicas if count <= machine.num_processors]
    if machine.has_link and machine.num_processors >= 2:
        layouts.append((2, 1))
    found = [DEFAULT]
    for tokens, sequences, waiting in product(BATCH_TOKENS, SEQUENCES, WAITING):
        if tokens is None or tokens >= sequences:
            plain = Setting(max_batch_tokens=tokens, max_sequences=sequences, max_waiting=waiting)
            found += [replace(plain, tensor=tensor, replicas=count) for tensor, count in layouts]
    found += [replace(DEFAULT, block_size=size, kv_memory=memory) for size, memory in product(BLOCK_SIZES, KV_MEMORY)]
    return [one for one in dict.fromkeys(found) if _fits(one, machine)]


def variants(best: Sequence[Setting], machine: TunedMachine) -> Iterator[Setting]:
    """The best limits with each kind of cache: these two need not be searched together."""
    for setting, size, memory in product(best, BLOCK_SIZES, KV_MEMORY):
        one = replace(setting, block_size=size, kv_memory=memory)
        if one != setting and _fits(one, machine):
            yield one


def unsimulated(best: Setting, machine: TunedMachine, *, speculates: bool, lossy: bool, swaps: bool) -> list[Setting]:
    """What no step times are known of: measured beside the best without being simulated. A cache that was too small for the
    default, `swaps`, is tried with a tier in host memory."""
    found = [replace(best, speculate="off")] if speculates else []
    if swaps:
        found.append(replace(best, kv_host=HOST_TIER))
    if lossy:
        found.append(replace(best, kv="fp8" if machine.is_gpu else "int8"))
        if machine.is_gpu:
            found.append(replace(best, weights="fp8"))
    return found


def _fits(setting: Setting, machine: TunedMachine) -> bool:
    measured = machine.measured
    if not measured.free_bytes:
        return setting.kv_memory is None  # an engine that holds nothing
    room = measured.free_bytes - measured.workspace_bytes
    sizing = setting.sizing(measured)
    is_roomy = setting.replicas == 1 or machine.is_gpu
    needed = (measured.weight_bytes + sizing.kv_bytes) * (1 if is_roomy else setting.replicas)
    return needed <= room and sizing.num_blocks * sizing.block_size >= min(machine.max_context, 2048)
