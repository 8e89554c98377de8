"""Small llamas as AWQ, GPTQ and compressed-tensors write them, each beside the same numbers in floats.

The packers here are written from the formats' own descriptions, number by number, and share nothing with the loader.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, WIDTH, HEADS, KV_HEADS, LAYERS, VOCABULARY = 256, 384, 8, 4, 2, 128
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (WIDTH, HIDDEN),
    "mlp.up_proj": (WIDTH, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDTH),
}


@dataclass(frozen=True)
class Kind:
    method: str
    bits: int = 4
    group_size: int = 128
    symmetric: bool = False
    version: str = "gptq"
    act_order: bool = False
    spare_bias: bool = False

    def settings(self) -> dict[str, Any]:
        """`quantization_config`, with what writers put there."""
        if self.method == "awq":
            return {
                "quant_method": "awq",
                "bits": 4,
                "group_size": self.group_size,
                "version": "gemm",
                "zero_point": True,
            }
        if self.method == "gptq":
            return {
                "quant_method": "gptq", "bits": self.bits, "group_size": self.group_size, "sym": self.symmetric,
                "desc_act": self.act_order, "checkpoint_format": self.version, "damp_percent": 0.1, "dynamic": None,
            }  # fmt: skip
        strategy = (
            {"strategy": "channel"} if self.group_size < 0 else {"strategy": "group", "group_size": self.group_size}
        )
        weights = {"num_bits": self.bits, "type": "int", "symmetric": self.symmetric, "actorder": None, **strategy}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
        return {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": group},
        }  # fmt: skip


KINDS = {
    "awq": Kind("awq"),
    "awq, one group a row": Kind("awq", group_size=-1),
    "awq, 32": Kind("awq", group_size=32),
    "gptq": Kind("gptq", symmetric=True, spare_bias=True),
    "gptq, zeros": Kind("gptq", group_size=64),
    "gptq v2, zeros": Kind("gptq", group_size=32, version="gptq_v2"),
    "gptq, 8 bits": Kind("gptq", bits=8, symmetric=True),
    "gptq v2, 8 bits, zeros": Kind("gptq", bits=8, group_size=-1, version="gptq_v2"),
    "gptq, 8 bits, zeros": Kind("gptq", bits=8, group_size=32),
    "gptq, act order": Kind("gptq", group_size=64, act_order=True),
    "gptq, 8 bits, act order": Kind("gptq", bits=8, symmetric=True, act_order=True),
    "packed": Kind("compressed-tensors", symmetric=True),
    "packed, zeros": Kind("compressed-tensors", group_size=32),
    "packed, 8 bits": Kind("compressed-tensors", bits=8, group_size=-1, symmetric=True),
}


@dataclass(frozen=True)
class Matrix:
    """number[o, k] = scales[o, g] * (integers[o, k] - zeros[o, g]), g the group of input k."""

    integers: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    group_of_input: np.ndarray

    def numbers(self) -> np.ndarray:
        scales, zeros = (each[:, self.group_of_input] for each in (self.scales.astype(np.float32), self.zeros))
        return scales * (self.integers - zeros).astype(np.float32)


def random_matrix(kind: Kind, shape: tuple[int, int], source: np.random.Generator, shuffle: np.ndarray) -> Matrix:
    num_out, num_in = shape
    size = num_in if kind.group_size < 0 else kind.group_size
    groups = np.arange(num_in) // size
    most, num_groups = 2**kind.bits, groups[-1] + 1
    integers = source.integers(0, most, shape)
    zeros = np.full((num_out, num_groups), most // 2)
    if not kind.symmetric:
        # GPTQ's older files cannot tell a zero of 0; all others may.
        zeros = source.integers(1 if kind.version == "gptq" and kind.method == "gptq" else 0, most, zeros.shape)
        zeros = np.clip(zeros, most // 4, 3 * most // 4)
        zeros[0, 0], zeros[1, 0], zeros[2, 0] = most - 1, 1, int(kind.version == "gptq")
    scales = (source.uniform(0.5, 1.5, zeros.shape) * 4 / most / num_in**0.5).astype(np.float16)
    return Matrix(integers, zeros, scales, groups[shuffle] if kind.act_order else groups)


def pack_words(numbers: np.ndarray, bits: int, places: tuple[int, ...] | None = None) -> np.ndarray:
    """Neighbours of the last axis in one word; place p of a word is its bits p * bits and up."""
    per_word = 32 // bits
    places = places or tuple(range(per_word))
    *outer, size = numbers.shape
    words = np.zeros((*outer, size // per_word), dtype=np.uint32)
    for neighbour, place in enumerate(places):
        words |= numbers[..., neighbour::per_word].astype(np.uint32) << np.uint32(bits * place)
    return words.view(np.int32)


def tensors(kind: Kind, name: str, matrix: Matrix) -> dict[str, np.ndarray]:
    """What a checkpoint holds for one matrix."""
    if kind.method == "awq":
        # Bits 0-3 hold output 0, bits 4-7 output 2, then 4, 6, 1, 3, 5, 7: so output 1 stands at place 4, and so on.
        places = (0, 4, 1, 5, 2, 6, 3, 7)
        found = {
            "qweight": pack_words(matrix.integers.T, 4, places),
            "qzeros": pack_words(matrix.zeros.T, 4, places),
            "scales": matrix.scales.T,
        }
    elif kind.method == "gptq":
        zeros = pack_words(matrix.zeros.T, kind.bits)
        if kind.version == "gptq":
            zeros = pack_words(matrix.zeros.T - 1, kind.bits)
        found = {
            "qweight": pack_words(matrix.integers, kind.bits).T,
            "qzeros": zeros,
            "scales": matrix.scales.T,
            "g_idx": matrix.group_of_input.astype(np.int32),
        }
        if kind.spare_bias:
            found["bias"] = np.zeros(len(matrix.integers), dtype=np.float16)
    else:
        found = {
            "weight_packed": pack_words(matrix.integers, kind.bits),
            "weight_scale": matrix.scales,
            "weight_shape": np.array(matrix.integers.shape),
        }
        if not kind.symmetric:
            found["weight_zero_point"] = pack_words(matrix.zeros.T, kind.bits).T
    return {f"{name}.{part}": np.ascontiguousarray(values) for part, values in found.items()}


def write_pair(kind: Kind, directory: Path, seed: int = 0) -> tuple[Path, Path]:
    """Directories of the model as quantized and as floats."""
    source = np.random.default_rng(seed)
    plain: dict[str, np.ndarray] = {"model.norm.weight": np.ones(HIDDEN, dtype=np.float32)}
    for name, size in (("model.embed_tokens", 1.0), ("lm_head", HIDDEN**-0.5)):
        plain[f"{name}.weight"] = source.normal(0, size, (VOCABULARY, HIDDEN)).astype(np.float16)
    quantized, floats = dict(plain), dict(plain)
    for layer in range(LAYERS):
        # One order for all matrices that read the same inputs, as calibration on those inputs gives.
        shuffles = {size: source.permutation(size) for size in (HIDDEN, WIDTH)}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            ones = source.uniform(0.5, 1.5, HIDDEN).astype(np.float16)
            quantized[f"model.layers.{layer}.{norm}.weight"] = floats[f"model.layers.{layer}.{norm}.weight"] = ones
        for part, shape in SHAPES.items():
            name, matrix = f"model.layers.{layer}.{part}", random_matrix(kind, shape, source, shuffles[shape[1]])
            quantized |= tensors(kind, name, matrix)
            floats[f"{name}.weight"] = matrix.numbers()
    return _write(directory / "quantized", quantized, kind.settings()), _write(directory / "floats", floats, None)


def _write(directory: Path, state: dict[str, np.ndarray], quantization: dict[str, Any] | None) -> Path:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }  # fmt: skip
    directory.mkdir(parents=True)
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    settings = {} if quantization is None else {"quantization_config": quantization}
    (directory / "config.json").write_text(json.dumps(config | settings))
    return directory
