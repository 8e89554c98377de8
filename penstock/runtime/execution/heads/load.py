"""Heads from files: the published layouts, checked against the model they are to guess for.

    medusa   N.0.linear.weight, N.0.linear.bias (residual blocks N.0, N.1, ...), N.B.weight (output matrix, or the target's)
    eagle    fc.weight, layers.0.self_attn.*, layers.0.mlp.*, layers.0.post_attention_layernorm.weight

`d2t` says which tokens a head chooses among: the token at place i is i + d2t[i]. Heads that `penstock train-draft` made name
their target's fingerprint in config.json; others are held to sizes alone. Pickled files are never opened.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ConfigError
from penstock.runtime.execution.heads.eagle import EagleHeads, EagleLayer, EagleParts, EagleShape
from penstock.runtime.execution.heads.medusa import MedusaHeads
from penstock.runtime.execution.heads.states import StateSource
from penstock.runtime.execution.heads.target import Chooser, HeadTarget, Projection
from penstock.runtime.formats.checkpoint import Checkpoint
from penstock.runtime.formats.quants import dequantize
from penstock.runtime.formats.safetensors import open_safetensors
from penstock.runtime.models.spec import ModelSpec

GIB = 1 << 30
PICKLED = ("*.pt", "*.bin", "*.pth")
PREFIXES = ("medusa_heads.", "medusa_head.", "model.")
"""What some publishers put before every name."""
ATTENTION, MLP = "layers.0.self_attn.", "layers.0.mlp."


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """A folder of heads, opened: nothing of it is on a device."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A tensor that must be there, of that shape."""
        found = self.tensors.get(name)
        if found is None:
            raise ConfigError(f"{self.folder} has no tensor {name}; is it a head of another kind?")
        if found.shape != shape:
            raise ConfigError(
                f"{name} of {self.folder} has shape {list(found.shape)} where the model has {list(shape)}: it was made for "
                "another model"
            )
        return found

    def optional(self, name: str, *shape: int) -> Tensor | None:
        return self.tensor(name, *shape) if name in self.tensors else None


def open_heads(kind: str, folder: Path, spec: ModelSpec, fingerprint: str | None, free_bytes: int) -> HeadFiles:
    """Read a folder of heads; ConfigError, with the way out, where they cannot guess for the model."""
    if not folder.is_dir():
        raise ConfigError(f"--speculate {kind}:{folder} names no folder; penstock train-draft makes one")
    if not list(folder.glob("*.safetensors")):
        pickled = next((file.name for pattern in PICKLED for file in folder.glob(pattern)), None)
        reason = f"only {pickled}, a pickled file that may run code when it is opened" if pickled else "no weights"
        raise ConfigError(
            f"{folder} holds {reason}; convert it with safetensors.torch.save_file to model.safetensors, or make heads with "
            "penstock train-draft"
        )
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if size > free_bytes:
        raise ConfigError(
            f"the heads in {folder} take {size / GIB:.2f} GiB but {free_bytes / GIB:.2f} GiB are free; choose smaller ones"
        )
    config = _config(folder)
    _check_target(kind, folder, config, spec, fingerprint)
    return HeadFiles(folder, config, _tensors(open_safetensors(folder)))


def make_heads(
    kind: str, files: HeadFiles, spec: ModelSpec, target: HeadTarget, store: StateSource
) -> MedusaHeads | EagleHeads:
    return _medusa(files, spec, target, store) if kind == "medusa" else _eagle(files, spec, target, store)


def draft_tokens(files: HeadFiles, spec: ModelSpec) -> Tensor | None:
    """The tokens that heads choose among; None for all."""
    offsets = files.tensors.get("d2t")
    if offsets is None:
        return None
    tokens = torch.arange(len(offsets)) + offsets.long()
    if offsets.ndim != 1 or not len(tokens) or int(tokens.min()) < 0 or int(tokens.max()) >= spec.vocab_size:
        raise ConfigError(
            f"d2t of {files.folder} names tokens that the model does not have: it was made for another model"
        )
    return tokens


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return config


def _check_target(kind: str, folder: Path, config: Mapping[str, Any], spec: ModelSpec, fingerprint: str | None) -> None:
    made_as = config.get("draft_kind")
    if made_as is not None and made_as != kind:
        raise ConfigError(f"{folder} holds a drafter of kind {made_as}; serve it with --speculate {made_as}:{folder}")
    made_for = config.get("target_fingerprint")
    if made_for is not None and made_for != fingerprint:
        name = config.get("target_name", "another model")
        raise ConfigError(
            f"the heads in {folder} were trained for {name}, with other weights or another tokenizer than those served; make "
            "new ones with penstock train-draft"
        )
    vocab_size = config.get("vocab_size")
    if isinstance(vocab_size, int) and vocab_size != spec.vocab_size:
        raise ConfigError(
            f"the heads in {folder} have a vocabulary of {vocab_size} tokens, the model has {spec.vocab_size}: they were made "
            "for another model"
        )


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in checkpoint.names:
        raw = checkpoint.tensor(name)
        short = next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
        if raw.dtype in ("I64", "I32"):
            values = torch.frombuffer(
                bytearray(raw.data.tobytes()), dtype=torch.int64 if raw.dtype == "I64" else torch.int32
            )
            tensors[short] = values.view(raw.shape)
        elif raw.dtype not in ("BOOL", "U8"):
            tensors[short] = torch.from_numpy(dequantize(raw).reshape(raw.shape).copy())
    return tensors


def _medusa(files: HeadFiles, spec: ModelSpec, target: HeadTarget, store: StateSource) -> MedusaHeads:
    size = spec.hidden_size
    numbers = {int(found[1]) for name in files.tensors if (found := re.match(r"(\d+)\.0\.linear\.weight$", name))}
    if not numbers or numbers != set(range(len(numbers))):
        raise ConfigError(
            f"{files.folder} holds no Medusa heads: tensors 0.0.linear.weight, 1.0.linear.weight, ... are missing"
        )
    blocks: list[list[Projection]] = []
    own: list[Chooser] = []
    tokens = draft_tokens(files, spec)
    num_choices = spec.vocab_size if tokens is None else len(tokens)
    for head in range(len(numbers)):
        depth = sum(1 for name in files.tensors if re.match(rf"{head}\.\d+\.linear\.weight$", name))
        names = [f"{head}.{block}.linear." for block in range(depth)]
        blocks.append(
            [target.hold(files.tensor(f"{at}weight", size, size), files.optional(f"{at}bias", size)) for at in names]
        )
        output = files.optional(f"{head}.{depth}.weight", num_choices, size)
        if output is not None:
            own.append(target.hold(output).likeliest)
    if own and len(own) != len(blocks):
        raise ConfigError(f"{files.folder} has output matrices for {len(own)} of {len(blocks)} heads; it is incomplete")
    choosers = own or [target.chooser(tokens)]
    return MedusaHeads(blocks, choosers, None if tokens is None else tokens.tolist(), store)


def _eagle(files: HeadFiles, spec: ModelSpec, target: HeadTarget, store: StateSource) -> EagleHeads:
    if any(name.startswith("midlayer.") for name in files.tensors):
        raise ConfigError(
            f"{files.folder} holds an EAGLE-3 head, which reads several layers; serve one of EAGLE or EAGLE-2"
        )
    shape = eagle_shape(files.config, spec)
    size, width = shape.hidden_size, shape.intermediate_size
    kv_size, at = shape.num_kv_heads * shape.head_dim, files.tensor
    parts_of_qkv = ("q", size), ("k", kv_size), ("v", kv_size)
    biases = [files.optional(f"{ATTENTION}{part}_proj.bias", rows) for part, rows in parts_of_qkv]
    qkv = [at(f"{ATTENTION}{part}_proj.weight", rows, size) for part, rows in parts_of_qkv]
    parts = EagleParts(
        fc_token=target.hold(at("fc.weight", size, 2 * size)[:, :size].contiguous()),
        fc_state=target.hold(at("fc.weight", size, 2 * size)[:, size:].contiguous(), files.optional("fc.bias", size)),
        qkv=target.hold(
            torch.cat(qkv), None if None in biases else torch.cat([one for one in biases if one is not None])
        ),
        out=target.hold(at(f"{ATTENTION}o_proj.weight", size, size)),
        gate_up=target.hold(torch.cat([at(f"{MLP}{part}_proj.weight", width, size) for part in ("gate", "up")])),
        down=target.hold(at(f"{MLP}down_proj.weight", size, width)),
        mlp_norm=at("layers.0.post_attention_layernorm.weight", size).to(target.device),
        attention_norm=_on(files.optional("layers.0.input_layernorm.weight", size), target.device),
    )
    tokens = draft_tokens(files, spec)
    choose = target.chooser(_on(tokens, target.device))
    return EagleHeads(EagleLayer(shape, parts), target, choose, None if tokens is None else tokens.tolist(), store)


def eagle_shape(config: Mapping[str, Any], spec: ModelSpec) -> EagleShape:
    try:
        num_heads = int(config["num_attention_heads"])
        shape = EagleShape(
            hidden_size=int(config["hidden_size"]),
            num_heads=num_heads,
            num_kv_heads=int(config.get("num_key_value_heads", num_heads)),
            intermediate_size=int(config["intermediate_size"]),
            rope_theta=float(config.get("rope_theta", 10_000.0)),
            eps=float(config.get("rms_norm_eps", 1e-6)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"config.json of an EAGLE head does not tell its layer's shape: {error}") from error
    if shape.hidden_size != spec.hidden_size:
        raise ConfigError(
            f"the head reads states of {shape.hidden_size} numbers, the model has {spec.hidden_size}: it was made for another "
            "model"
        )
    if (
        not 0 < shape.num_kv_heads <= shape.num_heads
        or shape.num_heads % shape.num_kv_heads
        or shape.hidden_size % (2 * shape.num_heads)
    ):
        raise ConfigError(
            f"an EAGLE head cannot have {shape.num_heads} heads, {shape.num_kv_heads} of keys, over {shape.hidden_size} numbers"
        )
    return shape


def _on(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)
