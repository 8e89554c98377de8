"""Fills a native decoder from a quantized checkpoint: matrices stay quantized, vectors become float32."""

from dataclasses import replace

import torch
from torch import Tensor

from penstock.errors import ModelFileError
from penstock.runtime.execution.device import rest_torch
from penstock.runtime.execution.load.audit import TensorAudit
from penstock.runtime.execution.load.grouping import group_recipe, has_order, is_quantized, rounds_inputs
from penstock.runtime.execution.load.parameters import check_all_used
from penstock.runtime.execution.load.recipe import open_recipe
from penstock.runtime.execution.native.arena import Arena
from penstock.runtime.execution.native.decoder import MATRICES, NativeDecoder, NativeWeights, native_obstacle
from penstock.runtime.formats.checkpoint import Checkpoint, RawTensor
from penstock.runtime.formats.mapping import let_go
from penstock.runtime.models import weights as recipes
from penstock.runtime.models.spec import GatedMLP, ModelSpec
from penstock.runtime.models.weights import sources
from penstock.runtime.ops.cpu.library import Library, open_library
from penstock.runtime.ops.quantized.packed import GROUP, pack

MOST_BYTES_PER_WEIGHT = 2
"""Weights of 8 bits have scales besides, and rows are filled up to whole tiles."""
UNTILED = "avx512"
"""The kernels of a machine with matrix tiles that does without them."""
LAYER_MATRICES = tuple(f"{name}.weight" for name in MATRICES)
"""A step has its rows in one number format: all of these are made for rows of 8 bits, or none is taken to be."""


def load_native(
    spec: ModelSpec,
    recipes: recipes.Recipes,
    checkpoint: Checkpoint,
    num_threads: int,
    is_invariant: bool = False,
    *,
    uses_tiles: bool = True,
) -> NativeDecoder | None:
    """None where the library, the model or the file does not lend itself to it: the torch decoder serves all."""
    library = packing_library(spec, recipes, checkpoint, num_threads, uses_tiles=uses_tiles)
    if library is None:
        return None
    weights = fill_native(recipes, checkpoint, spec)
    check_all_used(checkpoint.names, {name for recipe in recipes.values() for name in sources(recipe)}, spec)
    return NativeDecoder(spec, weights, library, is_invariant)


def packing_library(
    spec: ModelSpec, recipes: recipes.Recipes, checkpoint: Checkpoint, num_threads: int, *, uses_tiles: bool = True
) -> Library | None:
    """The library, if it computes such a model from such a file."""
    library = open_library(num_threads)
    if library is not None and library.kernels.startswith("amx") and not uses_tiles:
        library = open_library(num_threads, UNTILED)
    if library is None or native_obstacle(spec) is not None or not _is_packable(recipes, checkpoint):
        return None
    return library


def fill_native(recipes: recipes.Recipes, checkpoint: Checkpoint, spec: ModelSpec) -> NativeWeights:
    """Read and pack; what was read of the file is let go."""
    matrices, vectors = {}, {}
    arena = Arena(MOST_BYTES_PER_WEIGHT * spec.num_parameters)
    used: dict[str, RawTensor] = {}
    rounds = all(rounds_inputs(recipe) for name, recipe in recipes.items() if name.endswith(LAYER_MATRICES))
    for name, recipe in recipes.items():
        leaves = TensorAudit()
        if len(open_recipe(recipe, checkpoint, leaves).shape) == 2:
            matrix = group_recipe(recipe, checkpoint, leaves)
            matrix = matrix.take(gate_order(spec)) if name.endswith("gate_up.weight") else matrix
            packed = pack(matrix if rounds and name.startswith("layers.") else replace(matrix, rounds=False))
            matrices[name] = replace(packed, data=arena.keep(packed.data))
        else:
            vectors[name] = _vector(name, recipe, checkpoint, leaves, spec)
        leaves.check()
        used |= leaves.reached
    for raw in used.values():
        let_go(raw.data)
    rest_torch()
    return NativeWeights(matrices, vectors)


def _is_packable(recipes: recipes.Recipes, checkpoint: Checkpoint) -> bool:
    """Layers hold quantized numbers, and every row takes its inputs as they come."""
    is_quantized_file = is_quantized(recipes["layers.0.mlp.down.weight"], checkpoint)
    return is_quantized_file and not any(has_order(recipe, checkpoint) for recipe in recipes.values())


def _vector(name: str, recipe: recipes.Recipe, checkpoint: Checkpoint, leaves: TensorAudit, spec: ModelSpec) -> Tensor:
    source = open_recipe(recipe, checkpoint, leaves)
    values = source.read(0, source.shape[0]).float().contiguous()
    return values[gate_order(spec)] if name.endswith("gate_up.bias") else values


def gate_order(spec: ModelSpec) -> Tensor:
    """32 gate rows, the 32 up rows they gate, and so on."""
    mlp = spec.layers[0].mlp
    if not isinstance(mlp, GatedMLP):
        raise ModelFileError(f"architecture {spec.architecture} has no gated feed-forward sublayer")
    return torch.arange(2 * mlp.width).view(2, -1, GROUP).transpose(0, 1).flatten()
