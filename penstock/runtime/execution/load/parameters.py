"""Fills a model's parameters: from a checkpoint by recipes, or with made-up numbers.

Every parameter is filled, in exactly its shape and type, and every tensor of the file is used or known to be of no use; or
the model is refused by the name of the tensor. Numbers already in the right type are used where they lie in the mapped file.
"""

import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from itertools import groupby

import torch
from torch import Tensor, nn

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.audit import TensorAudit, check_numbers
from penstock.runtime.execution.load.copied import PLAIN
from penstock.runtime.execution.load.grouping import group_recipe, is_quantized
from penstock.runtime.execution.load.packing import can_pack, put_packed
from penstock.runtime.execution.load.recipe import Source, open_recipe
from penstock.runtime.formats.checkpoint import Checkpoint, RawTensor, quoted
from penstock.runtime.layers.build import build_model
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.encoder import Encoder
from penstock.runtime.models import weights as recipes
from penstock.runtime.models.spec import ModelSpec

Progress = Callable[[int, int], None]
"""Told how many numbers of how many are in place."""
Finish = Callable[[nn.Module], None]
"""Called with each layer whose numbers are in place, before the next is filled: a model that is made smaller is never whole."""

SLICE_VALUES = 1 << 22
"""Numbers converted at once: what loading needs beside the parameters."""

IGNORED = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|rope_freqs\.weight|rope_factors_(long|short)\.weight"
    r"|attn\.(masked_)?bias|position_ids|pooler\.dense\.(weight|bias)|(input|output|[qkv])_scale|SCB|weight_format)$"
    r"|^cls\.|^(model\.)?(vision_tower|multi_modal_projector)\."
)
"""Tensors that hold no parameter of ours: angle tables, causal masks, counters, a pooler, scales of activations (they are
computed with more bits here) and of a cache in few, a head for training, eyes."""


def load_model(
    spec: ModelSpec,
    recipes: recipes.Recipes,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress | None = None,
    packs: bool = False,
    finish: Finish | None = None,
) -> Decoder | Encoder:
    """With `packs`, matrices of a decoder that the file holds in few bits stay in them."""
    model = build_model(spec, dtype)
    used = fill_model(model, recipes, checkpoint, device, progress, packs, finish)
    check_all_used(checkpoint.names, used, spec)
    return model.eval()


def fill_model(
    model: Decoder | Encoder,
    recipes: recipes.Recipes,
    checkpoint: Checkpoint,
    device: torch.device,
    progress: Progress | None = None,
    packs: bool = False,
    finish: Finish | None = None,
) -> set[str]:
    """Put numbers into all parameters of a model that has none; returns the names of the tensors they came from."""
    parameters = dict(model.named_parameters())
    _check_names(parameters, recipes, model.spec)
    total, done = sum(parameter.numel() for parameter in parameters.values()), 0
    used: set[str] = set()
    for names in _layer_by_layer(model, parameters, finish):
        for name in names:
            used |= _fill_one(model, name, recipes[name], checkpoint, device, packs)
            done += parameters[name].numel()
            if progress is not None:
                progress(done, total)
    return used


def _layer_by_layer(model: nn.Module, names: Iterable[str], finish: Finish | None) -> Iterator[Iterable[str]]:
    """Names of a layer's parameters at a time, those outside of layers between them; a layer is finished behind its own."""
    for layer, own in groupby(names, _layer_of):
        yield own
        if finish is not None and layer:
            finish(model.get_submodule(layer))


def _layer_of(name: str) -> str:
    """`layers.3` of `layers.3.mlp.down.weight`; nothing of what is in no layer."""
    first, number, *_ = f"{name}.".split(".")
    return f"{first}.{number}" if first == "layers" else ""


def fill_parameter(
    model: nn.Module, name: str, recipe: recipes.Recipe, checkpoint: Checkpoint, device: torch.device
) -> Tensor:
    """Put numbers into one parameter, for who walks through a model part by part; returns them."""
    _fill_one(model, name, recipe, checkpoint, device, packs=False)
    return model.get_parameter(name)


def _fill_one(
    model: nn.Module, name: str, recipe: recipes.Recipe, checkpoint: Checkpoint, device: torch.device, packs: bool
) -> set[str]:
    parameter, audit = model.get_parameter(name), TensorAudit()
    source = open_recipe(recipe, checkpoint, audit)
    if source.shape != tuple(parameter.shape):
        raise ModelFileError(
            f"{name} should be {list(parameter.shape)}, but {_listed(audit.reached)} make it {list(source.shape)}; "
            "the file does not fit its own description"
        )
    if packs and can_pack(model, name) and is_quantized(recipe, checkpoint):
        put_packed(model, name, group_recipe(recipe, checkpoint, audit), device)
    else:
        _put(model, name, _read(recipe, source, audit, parameter.dtype, device))
    audit.check()
    return set(audit.reached)


def dummy_model(
    spec: ModelSpec, device: torch.device, dtype: torch.dtype, seed: int = 0, finish: Finish | None = None
) -> Decoder | Encoder:
    """A model of random numbers, the same on every run, of a size that keeps activations near one."""
    model = build_model(spec, dtype)
    fill_dummy(model, device, seed, finish)
    return model.eval()


def fill_dummy(model: nn.Module, device: torch.device, seed: int = 0, finish: Finish | None = None) -> None:
    """The same for a model that has no numbers yet."""
    generator = torch.Generator(device).manual_seed(seed)
    for names in _layer_by_layer(model, [name for name, _ in model.named_parameters()], finish):
        for name in names:
            parameter = model.get_parameter(name)
            values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            if "norm" in name:
                values.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                values.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
            _put(model, name, values)


def _read(
    recipe: recipes.Recipe, source: Source, audit: TensorAudit, dtype: torch.dtype, device: torch.device
) -> Tensor:
    if isinstance(recipe, recipes.Tensor):
        raw = audit.reached[recipe.name]
        if PLAIN.get(raw.dtype) == dtype and (view := _view(raw, dtype)) is not None:
            for rows in _slices(view):
                check_numbers(raw.name, rows, audit)
            return view.to(device)
    values = torch.empty(source.shape, dtype=dtype, device=device)
    _fill(values, source)
    if dtype == torch.float16 and not bool(torch.isfinite(values).all()):
        raise ModelFileError(f"{_listed(audit.reached)} hold numbers too large for float16; choose bfloat16 or float32")
    return values


def _fill(target: Tensor, source: Source) -> None:
    if target.ndim > 2:
        for index in range(len(target)):
            _fill(target[index], source.item(index))
        return
    start = 0
    for rows in _slices(target):
        rows.copy_(source.read(start, start + len(rows)))
        start += len(rows)


def _slices(values: Tensor) -> Iterable[Tensor]:
    row = max(1, math.prod(values.shape[1:]))
    return values.split(max(1, SLICE_VALUES // row)) if values.ndim else (values,)  # type: ignore[no-untyped-call]


def _view(raw: RawTensor, dtype: torch.dtype) -> Tensor | None:
    """The tensor in the mapped file itself; None where its bytes are not aligned for that."""
    if raw.data.ctypes.data % dtype.itemsize:
        return None
    with warnings.catch_warnings():
        # The mapping is read-only and parameters are never written.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(raw.data).view(dtype).view(raw.shape)


def _put(model: nn.Module, name: str, values: Tensor) -> None:
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, nn.Parameter(values, requires_grad=False))


def _check_names(parameters: Collection[str], recipes: recipes.Recipes, spec: ModelSpec) -> None:
    for name in parameters:
        if name not in recipes:
            raise ModelFileError(f"architecture {spec.architecture} has no recipe for its parameter {name}")
    for name in recipes:
        if name not in parameters:
            near = get_close_matches(name, parameters, 1)
            hint = f"; did you mean {near[0]}" if near else ""
            raise ModelFileError(
                f"architecture {spec.architecture} has a recipe for {name}, which is no parameter{hint}"
            )


def check_all_used(names: Iterable[str], used: set[str], spec: ModelSpec) -> None:
    ignored = {"lm_head.weight", "language_model.lm_head.weight", "output.weight"} if spec.tied_embedding else set()
    guesses = (
        f"model.layers.{spec.num_layers}." if spec.architecture == "deepseek" else "-"
    )  # V3's guess one token further
    left = [
        name
        for name in names
        if name not in used | ignored and not IGNORED.search(name) and not name.startswith(guesses)
    ]
    if left:
        raise ModelFileError(
            f"{len(left)} tensors have no place in a model of architecture {spec.architecture}: {_listed(left)}; "
            "the file is of another kind than it says"
        )


def _listed(names: Iterable[str], most: int = 5) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(quoted(name) for name in names[:most]) + more
