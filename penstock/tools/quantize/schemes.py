"""What `--to` names: which encoding each tensor of a model gets, by which method, and how a config says so."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from penstock.errors import ConfigError
from penstock.runtime.models.spec import ModelSpec, MoE, only_gqa
from penstock.tools.quantize.encodings import BlockEncoding, Encoding, Float8Encoding, MicroEncoding
from penstock.tools.quantize.integers import IntegerEncoding

Method = Literal["round", "gptq", "awq", "smooth"]
GROUPS = (128, 64, 32)
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""For rows that are not whole blocks of 256, as llama.cpp chooses."""
FP8_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Scheme:
    name: str
    says: str
    """One line for help and card."""
    encoding: Encoding
    """Of most matrices in layers."""
    methods: tuple[Method, ...] = ("round",)
    """The first is the default."""
    gguf: bool = False
    more: str = ""
    """GGUF type of the tensors that matter more."""
    file_type: int = 0
    """GGUF's `general.file_type`."""
    overrides: Mapping[str, Encoding] = field(default_factory=dict)
    """By tensor name, where a search has chosen."""

    def choose(self, tensor: str, parameter: str, spec: ModelSpec, num_columns: int, dims: int) -> Encoding:
        """`parameter` is our name of what the tensor is part of."""
        plain = BlockEncoding("F32" if self.gguf else "BF16")
        if tensor in self.overrides:
            return self.overrides[tensor]
        if dims < 2 or not parameter.endswith(".weight") or "norm" in parameter or "router" in parameter:
            return plain
        if parameter in ("positions.weight", "token_types.weight"):
            return plain
        if self.gguf:
            return self._gguf(tensor, parameter, spec, num_columns)
        if parameter in ("embedding.weight", "output.weight"):
            return BlockEncoding("BF16")
        return self.encoding if self.encoding.fits(num_columns) else BlockEncoding("BF16")

    def _gguf(self, tensor: str, parameter: str, spec: ModelSpec, num_columns: int) -> Encoding:
        base = self.encoding
        if not isinstance(base, BlockEncoding):
            raise ConfigError(f"{self.name} is no GGUF format")
        dtype = base.dtype
        is_output = parameter == "output.weight" or (parameter == "embedding.weight" and spec.tied_embedding)
        if is_output and dtype not in ("F32", "F16", "BF16", "Q8_0"):
            dtype = "Q6_K"
        elif self.more and parameter.startswith("layers."):
            number, count = int(parameter.split(".")[1]), spec.num_layers
            if ("attn_v" in tensor or "ffn_down" in tensor) and _matters_more(number, count):
                dtype = self.more
        if not BlockEncoding(dtype).fits(num_columns):
            dtype = FALLBACK.get(dtype, dtype)
        return BlockEncoding(dtype) if BlockEncoding(dtype).fits(num_columns) else BlockEncoding("F16")

    def in_groups(self, spec: ModelSpec, asked: int | None) -> "Scheme":
        """With groups that all of the model's rows are made of: those asked for, or the largest."""
        encoding = self.encoding
        if not isinstance(encoding, IntegerEncoding) or encoding.group is None:
            if asked is not None:
                raise ConfigError(
                    f"group is for formats with groups of whole numbers, not for {self.name}; leave it out"
                )
            return self
        widths = {spec.hidden_size}
        for layer in spec.layers:
            inner = layer.mlp.expert if isinstance(layer.mlp, MoE) else layer.mlp
            widths |= {only_gqa(layer.attention, "quantized here").q_size, inner.width}
        fitting = [size for size in GROUPS if all(width % size == 0 for width in widths)]
        if not fitting or (asked is not None and asked not in fitting):
            choice = f"choose one of {', '.join(map(str, fitting))}" if fitting else "choose a GGUF format"
            raise ConfigError(
                f"rows of {', '.join(map(str, sorted(widths)))} are not whole groups of {asked or 32}; {choice}"
            )
        return replace(self, encoding=replace(encoding, group=asked or fitting[0]))


def _matters_more(number: int, count: int) -> bool:
    """llama.cpp's rule for Q4_K_M and Q5_K_M: the first and last eighth, and every third between."""
    return number < count // 8 or number >= 7 * count // 8 or (number - count // 8) % 3 == 2


def _integers(bits: int, layout: Any, *, symmetric: bool, rows: bool = False, activations: int = 0) -> IntegerEncoding:
    dtype = torch.bfloat16 if layout == "compressed" else torch.float16
    return IntegerEncoding(bits, None if rows else 128, symmetric, layout, dtype, activations)


def _blocks(name: str, dtype: str, file_type: int, more: str = "") -> Scheme:
    return Scheme(name, f"GGUF {name.upper()}", BlockEncoding(dtype), ("round",), True, more, file_type)


SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            "int4",
            "4-bit groups (compressed-tensors W4A16)",
            _integers(4, "compressed", symmetric=False),
            ("gptq", "awq", "round"),
        ),
        Scheme("awq", "4-bit groups in AutoAWQ's layout", _integers(4, "awq", symmetric=False), ("awq", "round")),
        Scheme("gptq", "4-bit groups in GPTQ's layout", _integers(4, "gptq", symmetric=True), ("gptq", "round")),
        Scheme(
            "int8",
            "8-bit groups (compressed-tensors W8A16)",
            _integers(8, "compressed", symmetric=True),
            ("round", "gptq"),
        ),
        Scheme(
            "w8a8",
            "8-bit weights and activations (SmoothQuant, then GPTQ; compressed-tensors)",
            _integers(8, "compressed", symmetric=True, rows=True, activations=8),
            ("smooth", "gptq", "round"),
        ),
        Scheme("fp8", "8-bit floats E4M3, a scale a row (compressed-tensors)", Float8Encoding(None, torch.bfloat16)),
        Scheme("fp8-block", "8-bit floats E4M3 in blocks of 128 x 128 (DeepSeek's layout)", Float8Encoding(FP8_BLOCK)),
        Scheme("mxfp4", "4-bit floats in blocks of 32 under a power of two", MicroEncoding("mxfp4")),
        Scheme("mxfp8", "8-bit floats in blocks of 32 under a power of two", MicroEncoding("mxfp8")),
        Scheme("bf16", "16-bit floats (safetensors)", BlockEncoding("BF16")),
        _blocks("gguf-bf16", "BF16", 32),
        _blocks("q8_0", "Q8_0", 7),
        _blocks("q4_0", "Q4_0", 2),
        _blocks("q4_1", "Q4_1", 3),
        _blocks("q4_k_m", "Q4_K", 15, "Q6_K"),
        _blocks("q5_k_m", "Q5_K", 17, "Q6_K"),
        _blocks("q6_k", "Q6_K", 18),
    )
}  # fmt: skip


def mixed_candidates(scheme: Scheme) -> list[Encoding]:
    """Formats that a mix in this scheme is made of, by their bits."""
    encoding = scheme.encoding
    if scheme.gguf:
        return [BlockEncoding(dtype) for dtype in ("Q4_0", "Q5_0", "Q8_0")]
    if not isinstance(encoding, IntegerEncoding) or encoding.layout != "compressed" or encoding.activations:
        raise ConfigError(
            f"--bits-per-weight mixes int4 and GGUF formats, not {scheme.name}; choose --to int4 or --to q4_0"
        )
    narrow = [replace(encoding, bits=4, group=size) for size in GROUPS if size <= (encoding.group or GROUPS[0])]
    return [*narrow, replace(encoding, bits=8, symmetric=True)]


def quantization_config(scheme: Scheme, method: Method, ignored: list[str]) -> dict[str, Any] | None:
    """The section of config.json by which readers know what they find."""
    encoding = scheme.encoding
    match encoding:
        case IntegerEncoding(layout="awq" | "gptq" as layout):
            common: dict[str, Any] = {"quant_method": layout, "bits": encoding.bits, "group_size": encoding.group}
            if layout == "awq":
                return common | {"version": "gemm", "zero_point": True}
            return common | {"desc_act": False, "sym": encoding.symmetric, "checkpoint_format": "gptq"}
        case Float8Encoding() if encoding.block:
            return {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [encoding.block, encoding.block],
                "modules_to_not_convert": ignored,
            }
        case BlockEncoding():
            return None
    groups = {"group_0": group_config(encoding, ["Linear"], method)}
    others: dict[Encoding, list[str]] = {}
    for tensor, other in scheme.overrides.items():
        others.setdefault(other, []).append(tensor.removesuffix(".weight"))
    if others:
        groups = {
            f"group_{number}": group_config(other, sorted(names), method)
            for number, (other, names) in enumerate(others.items())
        }
    return {
        "quant_method": "compressed-tensors",
        "format": _format(encoding),
        "quantization_status": "compressed",
        "ignore": ignored,
        "config_groups": groups,
    }


def _format(encoding: Encoding) -> str:
    match encoding:
        case IntegerEncoding():
            return "int-quantized" if encoding.activations else "pack-quantized"
        case MicroEncoding(kind="mxfp4"):
            return "mxfp4-pack-quantized"
        case MicroEncoding():
            return "mxfp8-quantized"
    return "float-quantized"


def group_config(encoding: Encoding, targets: list[str], method: Method) -> dict[str, Any]:
    """One of compressed-tensors' `config_groups`."""
    weights: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    activations: dict[str, Any] | None = None
    match encoding:
        case IntegerEncoding():
            weights |= {"num_bits": encoding.bits, "symmetric": encoding.symmetric}
            if encoding.group is not None:
                weights |= {"strategy": "group", "group_size": encoding.group}
            if method == "gptq":
                weights["actorder"] = "static"
            if encoding.activations:
                activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
        case Float8Encoding():
            weights["type"] = "float"
            activations = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
        case MicroEncoding():
            weights |= {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
            weights |= {"num_bits": 4 if encoding.kind == "mxfp4" else 8, "zp_dtype": "torch.uint8"}
    return {"targets": targets, "weights": weights, "input_activations": activations, "output_activations": None}
