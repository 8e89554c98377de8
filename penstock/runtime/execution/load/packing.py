"""Puts packed matrices in the place of plain ones, from outside: layers do not know it was ever otherwise.

Left as they are: encoders, which are seldom short of memory, and the experts of mixtures, which have kernels of their own.
"""

import torch
from torch import nn

from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.embedding import Embedding
from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.quantized.packed import Int8Linear, PackedEmbedding, PackedLinear
from penstock.runtime.ops.quantized.packed import GROUP, Grouped


def can_pack(model: nn.Module, parameter: str) -> bool:
    """It is the matrix of a linear layer or of the embedding, in whole groups."""
    path, _, last = parameter.rpartition(".")
    if not isinstance(model, Decoder) or last != "weight":
        return False
    layer = model.get_submodule(path)
    is_matrix = isinstance(layer, Linear) or layer is model.embedding
    return is_matrix and model.get_parameter(parameter).shape[1] % GROUP == 0


def put_packed(model: nn.Module, parameter: str, matrix: Grouped, device: torch.device) -> None:
    """A matrix's layer replaced by one that holds it packed."""
    path = parameter.removesuffix(".weight")
    layer = model.get_submodule(path)
    packed: nn.Module
    if isinstance(layer, Embedding):
        packed = PackedEmbedding(matrix, layer.scale, layer.dtype, device)
    elif isinstance(layer, Linear):
        packed = (Int8Linear if matrix.rounds else PackedLinear)(matrix, layer.bias, device)
    else:
        raise TypeError(f"{path} is no layer with one matrix")
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, packed)
