"""Adapters from their files: PEFT directories and GGUF adapters, read, checked and laid out as the base's parameters are.

A file is not trusted: names, shapes and numbers are checked before anything is sized by them, and no file outside the
adapter's own directory is opened.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.copied import PLAIN, CopiedTensors, LocatedTensors, ShapedTensors
from penstock.runtime.execution.load.low_rank import LowRank, fit, follow
from penstock.runtime.formats.checkpoint import Checkpoint, RawTensor, quoted
from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.formats.quants import dequantize
from penstock.runtime.formats.safetensors import SafetensorsFile, confined
from penstock.runtime.models.adapters import (
    CONFIG_NAME,
    PICKLED_NAME,
    PREFIX,
    WEIGHTS_NAME,
    AdapterSettings,
    MatrixShape,
    ModuleNames,
    base_recipes,
    matrix_shape,
    read_gguf_settings,
    read_settings,
)
from penstock.runtime.models.sharding import ModelShard, shard_recipes
from penstock.runtime.models.spec import ModelSpec, MoE
from penstock.runtime.models.weights import Concat, Recipe, Stack, sources

MAX_CONFIG_BYTES = 1 << 20
MAX_RANK = 512
PERSON = b"penstock.lora"
HASHED_BYTES = 4 << 20
READING_THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))
MAX_TENSORS = 200_000
LARGE_BYTES = 128 << 20
"""Larger files are looked at before they are read."""
TABLES = ("embedding", "output")
LORA_A, LORA_B, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
EMBEDDING_A, EMBEDDING_B = "lora_embedding_A", "lora_embedding_B"
ENDINGS = {
    **{f".{ending}": ending for ending in (LORA_A, LORA_B, MAGNITUDE, EMBEDDING_A, EMBEDDING_B)},
    f".{MAGNITUDE}.weight": MAGNITUDE,
    ".weight.lora_a": LORA_A,
    ".weight.lora_b": LORA_B,
    ".base_layer.weight": "base_layer",
    ".modules_to_save.weight": "weight",
    ".weight": "weight",
}
"""How tensors' names end, and which part of a module they are. What stands before is the module."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is laid over a model, by our modules' names. Two adapters of one `digest` are one.

    Changes of a layer's matrices are in the file's own kind of numbers, all else is in float32."""

    digest: str
    path: str
    base: str
    changes: Mapping[str, tuple[LowRank | None, ...]] = field(default_factory=dict)
    """Of each matrix, one for each of the modules it was joined from."""
    experts: Mapping[str, tuple[tuple[LowRank | None, ...], ...]] = field(default_factory=dict)
    """Of each stack of experts, expert by expert."""
    tables: Mapping[str, Tensor] = field(default_factory=dict)
    """Embedding and output matrices of its own."""

    @property
    def thin(self) -> list[LowRank]:
        stacks = [parts for stack in self.experts.values() for parts in stack]
        return [change for parts in (*self.changes.values(), *stacks) for change in parts if change is not None]

    @property
    def rank(self) -> int:
        return max((change.rank for change in self.thin), default=0)

    @property
    def num_bytes(self) -> int:
        tensors = [*self.tables.values(), *(part for change in self.thin for part in (change.left, change.right))]
        return sum(tensor.nbytes for tensor in tensors)

    @property
    def num_parameters(self) -> int:
        parts = [part for change in self.thin for part in (change.left, change.right)]
        return sum(tensor.numel() for tensor in (*self.tables.values(), *parts))


class ReadyAdapter:
    """What a bank makes of an adapter goes by its names. `adapter` is what of it is still to be looked at."""

    __slots__ = ()
    adapter: Adapter

    @property
    def digest(self) -> str:
        return self.adapter.digest

    @property
    def path(self) -> str:
        return self.adapter.path

    @property
    def base(self) -> str:
        return self.adapter.base


@dataclass(slots=True)
class Module:
    """The tensors of one module, by what they are."""

    name: str
    parts: dict[str, RawTensor] = field(default_factory=dict)


def read_adapter(path: Path, spec: ModelSpec, max_rank: int = MAX_RANK, shard: ModelShard | None = None) -> Adapter:
    """An adapter for a model, or for a rank's part of it; ModelFileError says why one is refused."""
    checkpoint, settings, files = open_adapter(path, spec)
    try:
        modules = modules_of(checkpoint)
        tensors = [raw for module in modules.values() for raw in module.parts.values()]
        if sum(raw.num_bytes for raw in tensors) > LARGE_BYTES:
            check_shapes(AdapterReading(path, spec, settings, max_rank), modules.values())
        reading = AdapterReading(path, spec, settings, max_rank)
        with reading_threads() as pool:
            places = [(file, at) for file in files for at in range(0, max(file.stat().st_size, 1), HASHED_BYTES)]
            hashed = [pool.submit(_hashed, *place) for place in places]
            reading.copied = CopiedTensors(tensors, pool)
            for module in modules.values():
                reading.take(module)
            digest = blake2b(b"".join(part.result() for part in hashed), digest_size=16, person=PERSON).hexdigest()
        return reading.adapter(digest, shard)
    except ModelFileError as error:
        raise ModelFileError(f"the adapter {path} is refused: {error}") from error
    finally:
        checkpoint.close()


def check_shapes(reading: "AdapterReading", modules: Iterable[Module]) -> None:
    """Refuse what is not for this model before memory is taken for its numbers."""
    reading.copied = ShapedTensors()
    for module in modules:
        reading.take(module)
    with suppress(NotImplementedError):  # a matrix that is made of several cannot be joined without numbers
        reading.adapter("", None)


def reading_threads() -> ThreadPoolExecutor:
    """Threads for one adapter: somebody waits for it."""
    return ThreadPoolExecutor(READING_THREADS, thread_name_prefix="adapter")


def open_adapter(path: Path, spec: ModelSpec) -> tuple[Checkpoint, AdapterSettings, tuple[Path, ...]]:
    """With the files whose contents tell one adapter from another."""
    if path.suffix == ".gguf":
        file = GgufFile(path)
        return file, read_gguf_settings(file.metadata, spec), (path,)
    config_path, weights_path = path / CONFIG_NAME, path / WEIGHTS_NAME
    if not config_path.exists():
        raise ModelFileError(f"{path} is no adapter: it has no {CONFIG_NAME}; name a PEFT directory or a .gguf file")
    if not weights_path.exists():
        if (path / PICKLED_NAME).exists():
            raise ModelFileError(f"{path} holds {PICKLED_NAME}, which can run code; save it as {WEIGHTS_NAME}")
        raise ModelFileError(f"{path} has no {WEIGHTS_NAME}; save the adapter as safetensors")
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        confined(path, name)
    settings = read_settings(_json(config_path))
    return SafetensorsFile(weights_path), settings, (config_path, weights_path)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
        content = json.loads(text) if len(text) <= MAX_CONFIG_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read: {str(error)[:200]}") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} does not hold a JSON object of at most {MAX_CONFIG_BYTES:,} bytes")
    return content


def _hashed(path: Path, begin: int) -> bytes:
    """Of a piece of a file; pieces are hashed side by side. Adapters that compute the same share what is cached of them."""
    with path.open("rb") as file:
        file.seek(begin)
        return sha256(file.read(HASHED_BYTES)).digest()  # chips have instructions for it


def modules_of(checkpoint: Checkpoint) -> dict[str, Module]:
    modules: dict[str, Module] = {}
    if len(checkpoint.names) > MAX_TENSORS:
        raise ModelFileError(f"it has {len(checkpoint.names):,} tensors; at most {MAX_TENSORS:,} are read")
    for name in checkpoint.names:
        ending = next((ending for ending in ENDINGS if name.endswith(ending)), None)
        if ending is None:
            raise ModelFileError(f"its tensor {quoted(name)} is of no kind that is served (LoRA, DoRA, whole matrices)")
        module = name.removesuffix(ending).removeprefix(PREFIX)
        modules.setdefault(module, Module(module)).parts[ENDINGS[ending]] = checkpoint.tensor(name)
    if not modules:
        raise ModelFileError("it has no tensors")
    return modules


class AdapterReading:
    """One adapter on its way from tensors to changes of parameters."""

    def __init__(self, path: Path, spec: ModelSpec, settings: AdapterSettings, max_rank: int) -> None:
        self._path = path
        self._spec = spec
        self._settings = settings
        self._max_rank = min(max_rank, MAX_RANK)
        self._recipes = base_recipes(spec, is_gguf=settings.is_gguf)
        self._names = ModuleNames(self._recipes)
        self._found: dict[str, LowRank] = {}
        """By the base's tensors."""
        self._whole: dict[str, Tensor] = {}
        self.copied: CopiedTensors | LocatedTensors | ShapedTensors | None = None

    def adapter(self, digest: str, shard: ModelShard | None) -> Adapter:
        spec = self._spec if shard is None else shard.spec
        recipes = self._recipes if shard is None else shard_recipes(self._recipes, shard)
        changes: dict[str, tuple[LowRank | None, ...]] = {}
        experts: dict[str, tuple[tuple[LowRank | None, ...], ...]] = {}
        tables: dict[str, Tensor] = {}
        used: set[str] = set()

        def find(name: str) -> LowRank | None:
            used.add(name)
            return self._found.get(name)

        for name, recipe in recipes.items():
            shape, module = matrix_shape(name, recipe, spec), name.removesuffix(".weight")
            if shape is None:
                continue
            if module in TABLES:
                whole = self._whole.get(next(iter(_leaves(recipe)), ""))
                if whole is not None:
                    tables[module] = whole if shard is None else whole[shard.vocabulary.start : shard.vocabulary.stop]
            if isinstance(recipe, Stack):
                stack = tuple(_fitted(part, find, shape) for part in recipe.parts)
                if any(any(parts) for parts in stack):
                    experts[module] = stack
            elif any(parts := _fitted(recipe, find, shape)):
                is_table = module in TABLES
                changes[module] = tuple(part.floats() if is_table and part is not None else part for part in parts)
        return Adapter(digest, str(self._path), self._settings.base, changes, experts, tables)

    def take(self, module: Module) -> None:
        kinds = set(module.parts)
        leaf = self._names.find(module.name)
        if kinds == {"weight"}:
            return self._take_whole(module, leaf)
        if leaf is None and module.name.removesuffix(".base_layer").endswith("mlp.experts"):
            return self._take_experts(module)
        if leaf is None:
            raise ModelFileError(f"its module {quoted(module.name)} is none of this model's; it is for another base")
        if EMBEDDING_A in kinds:
            self._found[leaf] = self._embedding(module)
            return None
        if not {LORA_A, LORA_B} <= kinds:
            raise ModelFileError(
                f"its module {quoted(module.name)} has {sorted(kinds)}; lora_A and lora_B belong together"
            )
        read = self._read if MAGNITUDE in kinds else self._stored
        a, b = (read(module.parts[part], 2) for part in (LORA_A, LORA_B))
        if self._settings.is_gguf and leaf == _leaves(self._recipes["embedding.weight"])[0]:
            a, b = b.t(), a.t()
        self._found[leaf] = self._change(module, a, b)
        return None

    def _change(self, module: Module, a: Tensor, b: Tensor) -> LowRank:
        """`b` [rows, rank] times `a` [rank, columns], scaled."""
        rank = self._rank(module, a, b)
        scale = self._settings.scale(module.name, rank)
        left = b * scale if self.copied is None else self.copied.times(b, scale)
        is_swapped = self._spec.architecture == "gpt2" and "lm_head" not in module.name and not self._settings.is_gguf
        scales = self._read(module.parts[MAGNITUDE], 1) if MAGNITUDE in module.parts else None
        if scales is not None and len(scales) != len(left):
            raise ModelFileError(f"{quoted(module.name)} has {len(scales)} magnitudes for {len(left)} outputs")
        # A convolution of GPT-2 is stored [in, out]; its recipe swaps it.
        return LowRank(a.t(), left.t(), 0, scales) if is_swapped else LowRank(left, a, 0, scales)

    def _embedding(self, module: Module) -> LowRank:
        if MAGNITUDE in module.parts:
            raise ModelFileError(f"DoRA on the embedding {quoted(module.name)} is not served; leave it to LoRA")
        a, b = (self._read(module.parts[part], 2) for part in (EMBEDDING_A, EMBEDDING_B))
        rank = self._rank(module, a, b)
        self._check_vocabulary(module.name, a.shape[1])
        return LowRank(a.t(), b.t() * self._settings.scale(module.name, rank))

    def _rank(self, module: Module, a: Tensor, b: Tensor) -> int:
        rank = len(a)
        if b.shape[1] != rank:
            raise ModelFileError(
                f"{quoted(module.name)} has matrices of {list(a.shape)} and {list(b.shape)}; ranks differ"
            )
        self._check_rank(module, rank)
        return rank

    def _check_rank(self, module: Module, rank: int) -> None:
        if not 1 <= rank <= self._max_rank:
            raise ModelFileError(
                f"{quoted(module.name)} has rank {rank}; at most {self._max_rank} (--max-adapter-rank)"
            )

    def _take_whole(self, module: Module, leaf: str | None) -> None:
        """A matrix of `modules_to_save`, in place of the base's."""
        tables = {next(iter(_leaves(self._recipes[f"{table}.weight"]))) for table in TABLES}
        if leaf not in tables:
            raise ModelFileError(
                f"it replaces {quoted(module.name)}; of modules_to_save the embedding and the output matrix are served"
            )
        values = self._read(module.parts["weight"], 2)
        self._check_vocabulary(module.name, len(values))
        if values.shape[1] != self._spec.hidden_size:
            raise ModelFileError(f"{quoted(module.name)} is {list(values.shape)}; it is for another base")
        self._whole[leaf] = values

    def _check_vocabulary(self, name: str, count: int) -> None:
        if count != self._spec.vocab_size:
            raise ModelFileError(
                f"{quoted(name)} has {count:,} tokens and the model {self._spec.vocab_size:,}: a changed vocabulary is not "
                "served; merge the adapter into its model"
            )

    def _take_experts(self, module: Module) -> None:
        """All experts of a layer in two matrices: A [experts x rank, in], B [out, rank x experts]."""
        a, b = (self._read(module.parts[part], 2) for part in (LORA_A, LORA_B))
        number = int(next((part for part in module.name.split(".") if part.isdecimal()), "0"))
        mlp = self._spec.layers[number].mlp if number < self._spec.num_layers else None
        if not isinstance(mlp, MoE) or len(a) % mlp.num_experts or len(a) != b.shape[1]:
            raise ModelFileError(f"its module {quoted(module.name)} is none of this model's; it is for another base")
        rank, width = len(a) // mlp.num_experts, mlp.expert.width
        is_first = (len(b), a.shape[1]) == (2 * width, self._spec.hidden_size)
        recipe = self._recipes[f"layers.{number}.mlp.experts.{'gate_up' if is_first else 'down'}.weight"]
        self._check_rank(module, rank)
        if not isinstance(recipe, Stack):
            raise ModelFileError(f"adapters of the experts of {self._spec.architecture} are not served")
        lefts = b.view(len(b), rank, mlp.num_experts).permute(2, 0, 1) * self._settings.scale(module.name, rank)
        rights = a.view(mlp.num_experts, rank, -1)
        for part, left, right in zip(recipe.parts, lefts, rights):
            names = list(_leaves(part))
            for name, rows in zip(names, left.chunk(len(names))):
                self._found[name] = LowRank(rows, right)

    def _read(self, raw: RawTensor, num_dims: int) -> Tensor:
        return self._stored(raw, num_dims).float()

    def _stored(self, raw: RawTensor, num_dims: int) -> Tensor:
        """In the file's own kind of numbers, unless they are packed."""
        if len(raw.shape) != num_dims or not all(raw.shape):
            raise ModelFileError(
                f"its tensor {quoted(raw.name)} is {list(raw.shape)}; {num_dims} dimensions are expected"
            )
        plain = PLAIN.get(raw.dtype)
        if self.copied is not None and self.copied.is_whole:
            values = self.copied.get(raw)
            if self.copied.are_finite:
                return values
        elif plain is None:
            values = torch.from_numpy(dequantize(raw)).view(raw.shape)
        else:  # as the file has them, copied while other threads go on: somebody waits for it
            values = torch.from_numpy(np.array(raw.data)).view(plain).view(raw.shape)
        # Sums of numbers that are finite hardly ever are not.
        if not math.isfinite(values.sum().item()) and not bool(torch.isfinite(values).all()):
            raise ModelFileError(f"its tensor {quoted(raw.name)} has numbers that are not finite")
        return values


def _fitted(recipe: Recipe, find: Any, shape: MatrixShape) -> tuple[LowRank | None, ...]:
    changes = follow(recipe, find, shape.rows)
    is_whole = not isinstance(recipe, Concat)  # parts of one were checked as they were laid side by side
    for change in changes:
        is_short = is_whole and len(change.left) < sum(shape.rows)
        if change.right.shape[1] != shape.columns or change.rows.stop > sum(shape.rows) or is_short:
            raise ModelFileError(
                f"a matrix of {sum(shape.rows)} x {shape.columns} is changed by one of {change.rows.stop} x "
                f"{change.right.shape[1]}; the adapter is for another base"
            )
    bounds = [0]
    for rows in shape.rows:
        bounds.append(bounds[-1] + rows)
    return tuple(fit(changes, bounds))


def _leaves(recipe: Recipe) -> list[str]:
    return list(sources(recipe))
