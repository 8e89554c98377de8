"""What a calculation is about: a model and a device, by name or by symbols. What is given wins over what a name tells."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from penstock.errors import ConfigError
from penstock.fields import setting
from penstock.runtime.models import catalog
from penstock.runtime.models.spec import GQA, ModelSpec, MoE
from penstock.tools.calculate.sheet import Sheet, positive
from penstock.tools.cost.hardware import BANDWIDTH_FRACTION, COMPUTE_FRACTION, Ceilings, Flops, Hardware, find
from penstock.tools.cost.precision import BYTES, KvFormat, WeightFormat, precision_of
from penstock.tools.cost.roofline import expected_experts
from penstock.tools.planner import figures

_Rate = Literal["bytes", "bytes/s", "flop/s"]
_TEXTBOOK_BITS: dict[str, float] = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}


@dataclass(frozen=True)
class ModelInputs:
    """A model by name, or by its numbers."""

    model: str = ""
    """A published model by name (llama-3-70b, qwen3-8b, ...), which gives the numbers below"""
    parameters: float | None = setting(None)
    """Parameters of the model (70e9)"""
    layers: int | None = setting(None)
    """Layers of the model"""
    heads: int | None = setting(None)
    """Attention heads of a layer"""
    kv_heads: int | None = setting(None)
    """Heads of a layer that have keys and values of their own"""
    head_dim: int | None = setting(None)
    """Numbers in a head"""
    hidden: int | None = setting(None)
    """Numbers in the vector between layers (d_model)"""
    weights: WeightFormat = "bf16"
    """How weights are held"""
    bits: float | None = setting(None)
    """Bits a weight, instead of --weights"""
    kv: KvFormat = "bf16"
    """How keys and values are held"""


class ModelNumbers:
    """A model's numbers as a calculation needs them; each is noted on the sheet when it is first asked for."""

    def __init__(self, inputs: ModelInputs, sheet: Sheet) -> None:
        self._inputs = inputs
        self._sheet = sheet
        self._spec: ModelSpec | None = catalog.find(inputs.model) if inputs.model else None

    @property
    def is_known(self) -> bool:
        """Its size is given or named."""
        return self._inputs.parameters is not None or self._spec is not None

    @property
    def has_heads(self) -> bool:
        """It caches keys and values of heads, not a latent, and all heads are known."""
        if self._spec is None:
            return self._inputs.heads is not None
        return isinstance(self._spec.layers[0].attention, GQA)

    @property
    def num_parameters(self) -> float:
        return self.number("parameters")

    @cached_property
    def bits(self) -> float:
        weights, given = self._inputs.weights, self._inputs.bits
        if given is not None:
            self._sheet.take("bits", positive("bits", given), "bits")
            return given
        bits = _TEXTBOOK_BITS[weights] if self._sheet.basis == "textbook" else 8.0 * BYTES[weights]
        self._sheet.take(
            "bits", bits, "bits", weights if bits == _TEXTBOOK_BITS[weights] else f"{weights}, scales included"
        )
        return bits

    @property
    def weight_bytes(self) -> float:
        return figures.weight_bytes(self.num_parameters, self.bits)

    def met_parameters(self, num_tokens: int) -> float:
        """Bytes of weights that a step of so many tokens reads: of experts only those some token is expected to choose."""
        if self._inputs.parameters is not None or self._spec is None:
            return self.num_parameters
        idle = 0.0
        for mlp in (layer.mlp for layer in self._spec.layers):
            if isinstance(mlp, MoE):
                met = expected_experts(mlp.num_experts, mlp.num_active, num_tokens)
                idle += (mlp.num_experts - met) * mlp.expert.num_parameters(self._spec.hidden_size)
        return self.num_parameters - idle

    @property
    def active_parameters(self) -> float:
        """Parameters that one token is multiplied with."""
        if self._inputs.parameters is not None or self._spec is None:
            return self.num_parameters
        self._sheet.take("active_parameters", self._spec.num_active_parameters, "", self._origin)
        return self._spec.num_active_parameters

    @cached_property
    def kv_bytes_per_token(self) -> float:
        size = BYTES[self._inputs.kv]
        self._sheet.take("kv_bytes_per_value", size, "bytes", self._inputs.kv)
        given = (self._inputs.layers, self._inputs.heads, self._inputs.kv_heads, self._inputs.head_dim)
        if self._spec is not None and given == (None, None, None, None):
            bytes_per_token = self._spec.kv_bytes_per_token(size)
            self._sheet.take("kv_bytes_per_token", bytes_per_token, "bytes", self._origin)
            return bytes_per_token
        return self._kv_bytes_per_token("kv_heads")

    @property
    def mha_bytes_per_token(self) -> float:
        """If every head had keys and values of its own."""
        return self._kv_bytes_per_token("heads")

    def _kv_bytes_per_token(self, heads: str) -> float:
        layers, num_heads, head_dim = (self.number(key) for key in ("layers", heads, "head_dim"))
        return figures.kv_bytes_per_token(layers, num_heads, head_dim, BYTES[self._inputs.kv])

    @property
    def hidden_size(self) -> float:
        given = self._inputs
        if given.hidden is None and self._spec is None and given.heads and given.head_dim:
            self._sheet.take("hidden", given.heads * given.head_dim, "", "heads x head_dim")
            return given.heads * given.head_dim
        return self.number("hidden")

    @property
    def _origin(self) -> str:
        return f"published shape of {self._inputs.model.lower()}"

    def number(self, key: str) -> float:
        """One of `SHAPE`."""
        given: float | None = getattr(self._inputs, key)
        if given is None and self._spec is None and key == "kv_heads":
            given = self._inputs.heads
        if given is not None:
            self._sheet.take(key, positive(key, given), "")
            return given
        if self._spec is None:
            spaced, dashed = (key.replace("_", separator) for separator in " -")
            raise ConfigError(f"the {spaced} is not known: give {dashed}=NUMBER, or --model NAME")
        value = SHAPE[key](self._spec)
        self._sheet.take(key, value, "", self._origin)
        return value


def _grouped(spec: ModelSpec) -> GQA:
    attention = spec.layers[0].attention
    if not isinstance(attention, GQA):
        raise ConfigError("this model caches a latent, not heads; leave out layers, heads, kv-heads and head-dim")
    return attention


SHAPE: Mapping[str, Callable[[ModelSpec], float]] = {
    "parameters": lambda spec: spec.num_parameters,
    "layers": lambda spec: spec.num_layers,
    "heads": lambda spec: spec.layers[0].attention.num_heads,
    "kv_heads": lambda spec: _grouped(spec).num_kv_heads,
    "head_dim": lambda spec: _grouped(spec).head_dim,
    "hidden": lambda spec: spec.hidden_size,
}
"""A model's numbers by the names of the inputs that give them otherwise."""


@dataclass(frozen=True)
class DeviceInputs:
    """A device by name, or by its numbers."""

    hardware: str = ""
    """A device by name (h100, a100, l4, ...), which gives the numbers below"""
    bandwidth: float | None = setting(None)
    """Bytes a second that its memory is read with (3.35e12)"""
    flops: float | None = setting(None)
    """Dense operations a second (989e12)"""
    memory: float | None = setting(None)
    """Bytes of memory (80e9)"""


class DeviceNumbers:
    """A device's numbers as a calculation needs them; each is noted on the sheet when it is first asked for."""

    def __init__(self, inputs: DeviceInputs, sheet: Sheet, weights: WeightFormat = "bf16") -> None:
        self._inputs = inputs
        self._sheet = sheet
        self._found: Hardware | None = find(inputs.hardware) if inputs.hardware else None
        self._weights = weights

    def knows(self, key: Literal["bandwidth", "flops", "memory"]) -> bool:
        return getattr(self._inputs, key) is not None or self._found is not None

    @cached_property
    def ceilings(self) -> Ceilings:
        """With the bandwidth asked for noted; operations are `flops`."""
        found = self._ceilings_of(self._found) if self._found else Ceilings(0.0, Flops())
        value = self._number("bandwidth", self._inputs.bandwidth, found.bandwidth_bytes_per_s, "bytes/s")
        return Ceilings(value, found.flops)

    @cached_property
    def flops(self) -> float:
        value = self._flops_of(self._ceilings_of(self._found)) if self._found else 0.0
        return self._number("flops", self._inputs.flops, value, "flop/s")

    @cached_property
    def peak_flops(self) -> float:
        """What MFU is a share of, on either basis."""
        if self._inputs.flops is not None or self._found is None:
            return self.flops
        self._sheet.take("peak_flops", value := self._flops_of(self._found.peak), "flop/s", self._found.source)
        return value

    @cached_property
    def peak_bandwidth(self) -> float:
        """What MBU is a share of, on either basis."""
        if self._inputs.bandwidth is not None or self._found is None:
            return self.ceilings.bandwidth_bytes_per_s
        value = self._found.peak.bandwidth_bytes_per_s
        self._sheet.take("peak_bandwidth", value, "bytes/s", self._found.source)
        return value

    @property
    def ridge(self) -> float:
        return self.flops / self.ceilings.bandwidth_bytes_per_s

    @cached_property
    def memory_bytes(self) -> float:
        given, found = self._inputs.memory, self._found
        if given is None and found is not None:
            self._sheet.take("memory", found.memory_bytes, "bytes", f"as the driver of {found.name} reports it")
            return found.memory_bytes
        return self._number("memory", given, 0.0, "bytes")

    def _ceilings_of(self, found: Hardware) -> Ceilings:
        return found.peak if self._sheet.basis == "textbook" else found.achievable

    def _flops_of(self, ceilings: Ceilings) -> float:
        return ceilings.flops_in(precision_of(self._weights, "bf16", ceilings).compute)

    def _number(self, key: str, given: float | None, value: float, unit: _Rate) -> float:
        if given is not None:
            self._sheet.take(key, positive(key, given), unit)
            return given
        if self._found is None:
            raise ConfigError(f"the {key} is not known: give {key}=NUMBER, or --hardware NAME")
        self._sheet.take(key, value, unit, self._reach(key, self._found))
        return value

    def _reach(self, key: str, found: Hardware) -> str:
        if self._sheet.basis == "textbook":
            return f"peak of {found.name}: {found.source}"
        if found.measured is not None:
            return f"measured on {found.name}"
        share = BANDWIDTH_FRACTION if key == "bandwidth" else COMPUTE_FRACTION
        return f"{share} of the peak of {found.name}"
