"""Adapters as files describe them: what PEFT's `adapter_config.json` or a GGUF adapter's head says, and whose module a tensor
changes. Torch-free.

A tensor of an adapter names a module of the published model. Which of our parameters that module became, and where in it, the
base model's own recipes say.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ModelFileError
from penstock.runtime.models.kinds.bounded import Bounded
from penstock.runtime.models.kinds.forgetting import unbounded
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.registry import BY_GGUF, BY_MODEL_TYPE, GgufArchitecture
from penstock.runtime.models.spec import ModelSpec, MoE, only_gqa
from penstock.runtime.models.weights import Concat, Recipe, Recipes, Stack, Tensor, sources

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PICKLED_NAME = "adapter_model.bin"
PREFIX = "base_model.model."
MAX_ALPHA = 2.0**20
MAX_PATTERN = 200

UNSERVED = {
    "lora_bias": "biases of its own",
    "layer_replication": "layers used several times",
    "alora_invocation_tokens": "weights that begin at some tokens (aLoRA)",
    "use_qalora": "pooled inputs (QALoRA)",
    "trainable_token_indices": "some tokens' embeddings alone",
    "use_bdlora": "block-diagonal matrices",
    "exclude_modules": "",
}
"""Settings of PEFT that change what is computed, and in which words they are refused; empty words change nothing."""


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """How an adapter's matrices count. A module's scale is alpha / rank, or alpha / sqrt(rank) under rsLoRA."""

    base: str
    alpha: float
    is_rank_stabilized: bool = False
    is_dora: bool = False
    alphas: Mapping[str, float] = field(default_factory=dict)
    """Modules with an alpha of their own, by PEFT's patterns."""
    is_gguf: bool = False

    def scale(self, module: str, rank: int) -> float:
        alpha = next((alpha for pattern, alpha in self.alphas.items() if _matches(pattern, module)), self.alpha)
        return alpha / (rank**0.5 if self.is_rank_stabilized else rank)


def read_settings(config: Mapping[str, Any]) -> AdapterSettings:
    """Of an `adapter_config.json`; ModelFileError for a kind of adapter that is not served."""
    fields = Fields(config, CONFIG_NAME)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelFileError(f"{CONFIG_NAME} describes {str(kind)[:40]!r}; adapters of the kind LORA are served")
    if config.get("bias", "none") != "none":
        raise ModelFileError(f"{CONFIG_NAME} has bias {str(config['bias'])[:40]!r}; train the adapter with bias none")
    for name, words in UNSERVED.items():
        if words and config.get(name):
            raise ModelFileError(f"{CONFIG_NAME} asks for {name}: adapters with {words} are not served")
    rank = fields.whole("r", 1, 1 << 20)
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise fields.wrong("alpha_pattern", "an object")
    alphas = {pattern: Fields(patterns, CONFIG_NAME).number(pattern, -MAX_ALPHA, MAX_ALPHA) for pattern in patterns}
    for pattern in alphas:
        _check_pattern(pattern)
    return AdapterSettings(
        base=str(config.get("base_model_name_or_path") or "")[:200],
        alpha=fields.number("lora_alpha", -MAX_ALPHA, MAX_ALPHA, float(rank)),
        is_rank_stabilized=fields.flag("use_rslora", False),
        is_dora=fields.flag("use_dora", False),
        alphas=alphas,
    )


def read_gguf_settings(metadata: Mapping[str, Any], spec: ModelSpec) -> AdapterSettings:
    """Of a GGUF file of the type adapter, for a model of its architecture."""
    if metadata.get("general.type") != "adapter" or metadata.get("adapter.type") != "lora":
        raise ModelFileError("the GGUF file is no LoRA adapter: its general.type is not adapter; serve it as a model")
    architecture = metadata.get("general.architecture")
    found = BY_GGUF.get(str(architecture))
    if found is not BY_MODEL_TYPE.get(spec.architecture) and str(architecture) != "llama":
        raise ModelFileError(f"the adapter is for {str(architecture)[:40]!r} and the model is {spec.architecture}")
    alpha = Fields(metadata, "GGUF metadata").number("adapter.lora.alpha", -MAX_ALPHA, MAX_ALPHA, 0.0)
    return AdapterSettings(base=str(metadata.get("general.base_model.0.name", "")), alpha=alpha, is_gguf=True)


def base_recipes(spec: ModelSpec, *, is_gguf: bool = False) -> Recipes:
    """How parameters are made of the modules that adapters name. A tied output matrix is a parameter of its own here."""
    architecture = BY_MODEL_TYPE.get("deepseek_v3" if spec.architecture == "deepseek" else spec.architecture)
    spec = unbounded(spec)
    if is_gguf and isinstance(architecture, GgufArchitecture):
        recipes = architecture.gguf_recipes(spec)
    elif architecture is not None and not is_gguf:
        recipes = architecture.recipes(spec)
    else:
        raise ModelFileError(f"adapters of architecture {spec.architecture} are not known")
    if spec.tied_embedding:
        recipes["output.weight"] = Tensor("output.weight" if is_gguf else "lm_head.weight")
    return {name: recipe for name, recipe in recipes.items() if name.endswith("weight")}


class ModuleNames:
    """Finds the tensor of the base model that a module of an adapter stands for, whatever wraps the model."""

    def __init__(self, recipes: Recipes) -> None:
        self._leaves = {leaf.removesuffix(".weight"): leaf for recipe in recipes.values() for leaf in sources(recipe)}
        self._endings = {_ending(module): leaf for module, leaf in self._leaves.items()}

    def find(self, module: str) -> str | None:
        return self._leaves.get(module) or self._endings.get(_ending(module))


def _ending(module: str) -> str:
    """A module's name from its layer on: what stands before that differs between classes of one architecture."""
    found = re.search(r"(?:^|\.)((?:layers|h|blk)\.\d+\..*)$", module)
    return found[1].replace("block_sparse_moe.", "mlp.") if found else module.rpartition(".")[2]


def _check_pattern(pattern: str) -> None:
    """PEFT's patterns may be regular expressions; those that could take for ever are refused."""
    if len(pattern) > MAX_PATTERN or re.search(r"\)[*+?{]|[*+?}][*+{]|\\[1-9]|\(\?", pattern):
        raise ModelFileError(f"alpha_pattern {pattern[:80]!r} is too involved; name modules plainly")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ModelFileError(f"alpha_pattern {pattern[:80]!r} is no regular expression: {error}") from None


def _matches(pattern: str, module: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """A parameter's rows, by the modules they come from, and its columns."""

    rows: tuple[int, ...]
    columns: int


def matrix_shape(name: str, recipe: Recipe, spec: ModelSpec) -> MatrixShape | None:
    """Of a matrix that adapters change, an expert's where there are several; None for what they cannot."""
    if name in ("embedding.weight", "output.weight"):
        return MatrixShape((spec.vocab_size,), spec.hidden_size)
    if not name.startswith("layers."):
        return None
    _, number, part = name.removesuffix(".weight").split(".", 2)
    layer, hidden = spec.layers[int(number)], spec.hidden_size
    whole = layer.attention.attention if isinstance(layer.attention, Bounded) else layer.attention
    attention, mlp = only_gqa(whole, "adapted"), layer.mlp
    width = mlp.expert.width if isinstance(mlp, MoE) else mlp.width
    if isinstance(recipe, Stack):
        recipe = recipe.parts[0]
    is_joined = isinstance(recipe, Concat)
    match part:
        case "attention.qkv":
            sizes = attention.q_size, attention.kv_size, attention.kv_size
            return MatrixShape(sizes if is_joined else (sum(sizes),), hidden)
        case "attention.out":
            return MatrixShape((hidden,), attention.q_size)
        case "mlp.gate_up" | "mlp.experts.gate_up":
            return MatrixShape((width, width) if is_joined else (2 * width,), hidden)
        case "mlp.up":
            return MatrixShape((width,), hidden)
        case "mlp.down" | "mlp.experts.down":
            return MatrixShape((hidden,), width)
        case "mlp.router" if isinstance(mlp, MoE):
            return MatrixShape((mlp.num_experts,), hidden)
        case _:
            return None


def adapter_bytes(spec: ModelSpec, rank: int) -> int:
    """What an adapter of all linears takes in 16-bit numbers: for each matrix, rank times the rows and columns of the modules
    it is made of."""
    total = 0
    for name, recipe in base_recipes(spec).items():
        shape = matrix_shape(name, recipe, spec) if name.startswith("layers.") else None
        if shape is not None:
            copies = len(recipe.parts) if isinstance(recipe, Stack) else 1
            total += copies * rank * (sum(shape.rows) + len(shape.rows) * shape.columns)
    return 2 * total
