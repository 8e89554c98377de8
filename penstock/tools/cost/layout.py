"""How a model lies over several devices, and what their communication costs.

    tensor    every matrix is cut over this many devices; two sums a layer put the parts together
    pipeline  layers are cut into this many stages; a token's vector passes from stage to stage
    expert    experts are dealt out to this many devices; beyond the tensor group, tokens travel to them and back
    data      this many copies of all that, each with requests of its own

It knows shapes and links, no batches and no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.models.spec import GQA, MLP, Attention, ModelSpec, MoE
from penstock.tools.cost.hardware import Hardware, Link

MAX_DEVICES = 100_000
CPU_VALUE_BYTES = 4
"""Of a number that CPU ranks add up."""


@dataclass(frozen=True, slots=True)
class Layout:
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "expert"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_DEVICES:
                raise ConfigError(f"{name} parallelism is {value}; choose a whole number from 1 to {MAX_DEVICES}")
        if self.expert > 1 and self.expert % self.tensor and self.tensor % self.expert:
            raise ConfigError(
                f"expert parallelism is {self.expert} beside tensor parallelism {self.tensor}: "
                "one must divide the other; make them equal, or choose a multiple"
            )
        if self.num_sharing > self.data or self.data % self.num_sharing:
            raise ConfigError(
                f"experts dealt out to {self.expert} devices span {self.num_sharing} copies of {self.tensor}, but there are "
                f"{self.data}; choose a multiple of {self.num_sharing} copies, or an expert parallelism that divides "
                f"{self.tensor * self.data}"
            )

    @property
    def ranks(self) -> Ranks:
        """As the engine deals a model out, to the copies that share experts as if they were one."""
        return Ranks(self.tensor, self.pipeline, self.expert)

    @property
    def devices_per_copy(self) -> int:
        return self.tensor * self.pipeline

    @property
    def num_devices(self) -> int:
        return self.devices_per_copy * self.data

    @property
    def expert_shards(self) -> int:
        """Into how many parts the experts of a layer are cut: whole experts first, then slices of them."""
        return max(self.tensor, self.expert)

    @property
    def num_sharing(self) -> int:
        """Copies that deal their experts out among each other, and so compute for each other's tokens."""
        return max(1, self.expert // self.tensor)

    def check(self, spec: ModelSpec) -> None:
        """Raise ConfigError if the model cannot be cut so."""
        if self.pipeline > spec.num_layers:
            raise ConfigError(
                f"{self.pipeline} pipeline stages for {spec.num_layers} layers; choose at most {spec.num_layers}"
            )
        for layer in spec.layers:
            heads = layer.attention.num_heads
            if heads % self.tensor:
                raise ConfigError(_indivisible(self.tensor, "tensor", heads, "attention heads"))
            mlp = layer.mlp
            if isinstance(mlp, MoE):
                if mlp.num_experts % self.expert:
                    raise ConfigError(_indivisible(self.expert, "expert", mlp.num_experts, "experts"))
                slices = self.expert_shards // self.expert
                if mlp.expert.width % slices:
                    raise ConfigError(_indivisible(slices, "tensor", mlp.expert.width, "columns of an expert"))
            elif mlp.width % self.tensor:
                raise ConfigError(_indivisible(self.tensor, "tensor", mlp.width, "columns of the MLP"))
        if self.expert > 1 and not any(isinstance(layer.mlp, MoE) for layer in spec.layers):
            raise ConfigError(f"expert parallelism is {self.expert} but the model has no experts; leave it at 1")

    def kv_shards(self, attention: Attention) -> int:
        """Into how many parts keys and values are cut: whole heads, copied where there are fewer than devices."""
        return min(self.tensor, attention.num_kv_heads) if isinstance(attention, GQA) else 1

    def attention_parameters(self, attention: Attention, hidden_size: int) -> float:
        """Of one layer on one device: what makes queries and the output is cut, what makes keys and values as they are."""
        if isinstance(attention, GQA):
            kv = 2 * attention.kv_size * hidden_size
        else:
            kv = (attention.kv_values_per_token + (getattr(attention, "q_rank", 0) or 0)) * hidden_size
        return (attention.num_parameters(hidden_size) - kv) / self.tensor + kv / self.kv_shards(attention)

    def dense_parameters(self, mlp: MLP, hidden_size: int) -> float:
        """Of one layer on one device, those that every token meets: routers whole, experts none."""
        total = mlp.num_parameters(hidden_size)
        if not isinstance(mlp, MoE):
            return total / self.tensor
        shared = mlp.shared.num_parameters(hidden_size) if mlp.shared else 0
        router = total - shared - mlp.num_experts * mlp.expert.num_parameters(hidden_size)
        return router + shared / self.tensor

    def __str__(self) -> str:
        parts = {"TP": self.tensor, "PP": self.pipeline, "EP": self.expert, "DP": self.data}
        return " x ".join(f"{name}{count}" for name, count in parts.items() if count > 1) or "one device"


SINGLE = Layout()


def all_reduce_s(size_bytes: float, num_devices: int, link: Link) -> float:
    """Sum one array over devices, each of which ends with the sum.

    Small arrays go to everybody at once, with one wait before the parts are read and one before they may be overwritten.
    Larger ones are scattered and gathered: 2 (n - 1) / n of the array passes each link, in two such rounds.
    """
    if num_devices == 1:
        return 0.0
    others = num_devices - 1
    scattered_s = 2 * others * size_bytes / num_devices / link.bandwidth_bytes_per_s + 4 * link.latency_s
    one_shot_s = others * size_bytes / link.bandwidth_bytes_per_s + 2 * link.latency_s
    return min(scattered_s, one_shot_s)


def spanning_all_reduce_s(size_bytes: float, num_devices: int, inner: Link, inner_size: int, outer: Link) -> float:
    """As `all_reduce_s`, over machines of `inner_size` devices: scattered and summed inside each, the pieces summed between
    machines by every device with its peers, gathered inside again. The waits add up; of large arrays the three phases run at
    the same time on different pieces, so that the slower link decides.

    Two machines of eight H100 with 400 Gb/s a device then take 42 us for 16 kB and reach 390 GB/s of bus bandwidth. For such
    pairs nccl-tests is published with some 26 us as NCCL's own estimate for 4 kB and 75 us on a bad fabric (NVIDIA/nccl
    issue 1453), and with 350 to 480 GB/s for large arrays.
    """
    if num_devices <= inner_size:
        return all_reduce_s(size_bytes, num_devices, inner)
    num_machines = -(-num_devices // inner_size)
    inside_s = 2 * (inner_size - 1) / inner_size * size_bytes / inner.bandwidth_bytes_per_s
    waits_s = 4 * inner.latency_s + all_reduce_s(0.0, num_machines, outer)
    between_s = all_reduce_s(size_bytes / inner_size, num_machines, outer) - all_reduce_s(0.0, num_machines, outer)
    return waits_s + max(inside_s, between_s)


def send_s(size_bytes: float, link: Link) -> float:
    return size_bytes / link.bandwidth_bytes_per_s + link.latency_s


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the devices of a layout send each other in a step."""

    layout: Layout
    num_layers: int
    num_expert_layers: int
    num_active: int
    """Experts that a token goes to."""
    vector_bytes: float
    """Of a token between layers."""
    tensor_link: Link
    """Inside a machine; `network` joins machines where a tensor group spans several."""
    devices_per_machine: int
    network: Link
    pipeline_link: Link
    expert_link: Link

    def seconds(self, num_tokens: float) -> float:
        """Of the sums and exchanges inside layers, for tokens that pass all layers together."""
        layout = self.layout
        size = num_tokens * self.vector_bytes
        inside = self.tensor_link, self.devices_per_machine
        total = 2 * self.num_layers * spanning_all_reduce_s(size, layout.tensor, *inside, self.network)
        if layout.num_sharing > 1:
            # Each device of the tensor group sends its share of the vectors out to the experts and gets as much back.
            leaving = (layout.expert - layout.tensor) / layout.expert
            sent = size * self.num_active * leaving / layout.tensor
            total += 2 * self.num_expert_layers * send_s(sent, self.expert_link)
        return total

    def hops_s(self, num_tokens: float) -> float:
        """From stage to stage, and the drawn tokens back to the first."""
        layout = self.layout
        if layout.pipeline == 1:
            return 0.0
        size = num_tokens * self.vector_bytes / layout.tensor
        return (layout.pipeline - 1) * send_s(size, self.pipeline_link) + self.pipeline_link.latency_s


def traffic_of(spec: ModelSpec, layout: Layout, hardware: Hardware, value_bytes: float) -> Traffic:
    experts = [layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoE)]
    return Traffic(
        layout=layout,
        num_layers=spec.num_layers,
        num_expert_layers=len(experts),
        num_active=max((moe.num_active for moe in experts), default=0),
        vector_bytes=spec.hidden_size * value_bytes,
        tensor_link=hardware.link(min(layout.tensor, hardware.devices_per_machine)),
        devices_per_machine=hardware.devices_per_machine,
        network=hardware.network,
        pipeline_link=hardware.link(layout.devices_per_copy),
        expert_link=hardware.link(layout.expert),
    )


def measured_traffic(shape: Mapping[str, int], layout: Layout, link: Link) -> Traffic:
    """Of ranks of one machine, on a CPU, over the link that was measured between them."""
    vector_bytes = shape["hidden_size"] * CPU_VALUE_BYTES
    return Traffic(layout, shape["num_layers"], 0, 0, vector_bytes, link, layout.devices_per_copy, link, link, link)


def _indivisible(count: int, kind: str, total: int, parts: str) -> str:
    near = [number for number in range(1, min(total, 1024) + 1) if not total % number]
    below = max((number for number in near if number < count), default=1)
    above = min((number for number in near if number > count), default=None)
    choices = f"{below} or {above}" if above else f"{below}"
    return f"{kind} parallelism {count} does not divide the model's {total} {parts}; choose {choices}"
