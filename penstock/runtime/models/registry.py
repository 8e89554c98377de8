"""Which file of this folder reads which checkpoint.

A new architecture is a module that offers `Architecture` and a row in each table it can be found by.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from penstock.errors import ModelFileError
from penstock.runtime.models.architectures import (
    bert,
    gemma2,
    gemma3,
    gpt2,
    llama,
    mistral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
)
from penstock.runtime.models.architectures.experts import deepseek, gpt_oss, llama4, mixtral, qwen3_moe
from penstock.runtime.models.architectures.hybrids import falcon_h1, granite4, lfm2, nemotron_h, qwen3_next
from penstock.runtime.models.quantization import METHODS, replace_floats
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.pooling import pooling_from_config
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Recipes

T = TypeVar("T")


class Architecture(Protocol):
    """What a module of this folder offers. `names` are the checkpoint's tensors; none means the published layout."""

    def spec_from_config(self, config: Mapping[str, Any]) -> ModelSpec: ...

    def recipes(self, spec: ModelSpec, names: Collection[str] = ()) -> Recipes: ...


@runtime_checkable
class GgufArchitecture(Architecture, Protocol):
    """One that is read from GGUF files too."""

    def spec_from_gguf(self, head: GgufHead) -> ModelSpec: ...

    def gguf_recipes(self, spec: ModelSpec, names: Collection[str] = ()) -> Recipes: ...


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """What a model is made of and how its checkpoint becomes that."""

    spec: ModelSpec
    recipes: Recipes
    mtp: Recipes = field(default_factory=dict)
    """Of a layer behind the last that foretells one token further; none where the checkpoint lacks it."""


class ConfigNames(NamedTuple):
    """An architecture, and what a `config.json` calls it."""

    architecture: Architecture
    classes: tuple[str, ...]
    """The first of its `architectures`."""
    model_types: tuple[str, ...]
    """Its `model_type`, where it names no `architectures`."""


ARCHITECTURES = (
    ConfigNames(llama, ("LlamaForCausalLM",), ("llama",)),
    ConfigNames(mistral, ("MistralForCausalLM",), ("mistral",)),
    ConfigNames(mixtral, ("MixtralForCausalLM",), ("mixtral",)),
    ConfigNames(qwen2, ("Qwen2ForCausalLM",), ("qwen2",)),
    ConfigNames(qwen3, ("Qwen3ForCausalLM",), ("qwen3",)),
    ConfigNames(qwen3_moe, ("Qwen3MoeForCausalLM",), ("qwen3_moe",)),
    ConfigNames(gemma2, ("Gemma2ForCausalLM",), ("gemma2",)),
    ConfigNames(gemma3, ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), ("gemma3", "gemma3_text")),
    ConfigNames(phi3, ("Phi3ForCausalLM",), ("phi3",)),
    ConfigNames(gpt2, ("GPT2LMHeadModel",), ("gpt2",)),
    ConfigNames(olmo2, ("Olmo2ForCausalLM",), ("olmo2",)),
    ConfigNames(gpt_oss, ("GptOssForCausalLM",), ("gpt_oss",)),
    ConfigNames(granite4, ("GraniteMoeHybridForCausalLM",), ("granitemoehybrid",)),
    ConfigNames(lfm2, ("Lfm2ForCausalLM",), ("lfm2",)),
    ConfigNames(qwen3_next, ("Qwen3NextForCausalLM",), ("qwen3_next",)),
    ConfigNames(falcon_h1, ("FalconH1ForCausalLM",), ("falcon_h1",)),
    ConfigNames(nemotron_h, ("NemotronHForCausalLM",), ("nemotron_h",)),
    ConfigNames(
        deepseek,
        ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"),
        ("kimi_k2", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"),
    ),
    ConfigNames(llama4, ("Llama4ForCausalLM", "Llama4ForConditionalGeneration"), ("llama4", "llama4_text")),
    ConfigNames(bert, ("BertModel", "BertForMaskedLM"), ("bert",)),
)
BY_CLASS: dict[str, Architecture] = {name: row.architecture for row in ARCHITECTURES for name in row.classes}
BY_MODEL_TYPE: dict[str, Architecture] = {name: row.architecture for row in ARCHITECTURES for name in row.model_types}

BY_GGUF: dict[str, GgufArchitecture] = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3moe": qwen3_moe,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "phi3": phi3,
    "gpt2": gpt2,
    "olmo2": olmo2,
    "gpt-oss": gpt_oss,
    "bert": bert,
}
"""By a GGUF file's `general.architecture`; `llama` stands for Mistral and Mixtral too."""

NOT_FROM_GGUF = {
    "deepseek2": "DeepSeek",
    "falcon-h1": "Falcon-H1",
    "granitehybrid": "Granite 4",
    "lfm2": "LFM2",
    "nemotron_h": "Nemotron-H",
    "qwen3next": "Qwen3-Next",
}
"""Architectures of GGUF files that are read from safetensors alone."""

QUANTIZATIONS: dict[str, tuple[Architecture, ...]] = {
    "mxfp4": (gpt_oss,),
    **{method: tuple(dict.fromkeys(BY_CLASS.values())) for method in METHODS},
}
"""By `quant_method`: the architectures that are read from such checkpoints."""


def read_spec(config: Mapping[str, Any]) -> ModelSpec:
    """What the model of a `config.json` is made of, whether or not its weights could be read."""
    return _by_config(config).spec_from_config(config)


def read_config(
    config: Mapping[str, Any], names: Collection[str] = (), pooling: Mapping[str, Any] | None = None
) -> RegisteredModel:
    """The model of a Hugging Face `config.json`. `pooling` is an encoder's `1_Pooling/config.json`, if it has one."""
    names = frozenset(names)
    architecture = _by_config(config)
    method = _quantization(config, architecture)
    spec = architecture.spec_from_config(config)
    if pooling is not None and not spec.generates:
        spec = replace(spec, pooling=pooling_from_config(pooling))
    recipes = architecture.recipes(spec, names)
    mtp = deepseek.mtp_recipes(spec, names) if architecture is deepseek else {}
    if method in METHODS:
        found = replace_floats(config, recipes | {f"mtp.{name}": recipe for name, recipe in mtp.items()}, names)
        recipes, mtp = {name: found[name] for name in recipes}, {name: found[f"mtp.{name}"] for name in mtp}
    return RegisteredModel(spec, recipes, mtp)


def read_gguf(
    metadata: Mapping[str, Any], names: Collection[str], factors: Mapping[str, Sequence[float]] | None = None
) -> RegisteredModel:
    """The model of a GGUF file. `factors` are the contents of those of `positions.FACTOR_TENSORS` that are in it."""
    names = frozenset(names)
    head = GgufHead(metadata, names, factors or {})
    if head.architecture in NOT_FROM_GGUF:
        name = NOT_FROM_GGUF[head.architecture]
        raise ModelFileError(f"{name} is not read from GGUF; use the safetensors checkpoint")
    architecture = _find(BY_GGUF, head.architecture, "GGUF architecture")
    if architecture is llama and head.fields.whole("expert_count", 0, 2**31, 0):
        architecture = mixtral
    elif architecture is llama and head.window():
        architecture = mistral
    spec = architecture.spec_from_gguf(head)
    return RegisteredModel(spec, architecture.gguf_recipes(spec, names))


def _by_config(config: Mapping[str, Any]) -> Architecture:
    fields = Fields(config)
    if fields.has("architectures"):
        classes = fields.items("architectures")
        if not classes or not isinstance(classes[0], str):
            raise fields.wrong("architectures", "a list that begins with a model class")
        return _find(BY_CLASS, classes[0], "architecture")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise fields.wrong("model_type", "named where there is no list of architectures")
    return _find(BY_MODEL_TYPE, model_type, "model_type")


def _find(table: Mapping[str, T], name: str, what: str) -> T:
    if name in table:
        return table[name]
    near = get_close_matches(name[:100], table, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise ModelFileError(f"{what} {name[:100]!r} is not known{hint} Known are: {', '.join(table)}")


def _quantization(config: Mapping[str, Any], architecture: Architecture) -> str | None:
    """The method a checkpoint was quantized by; None if it was not."""
    section = Fields(config).section("quantization_config")
    if not Fields(config).has("quantization_config"):
        return None
    if architecture not in section.choice("quant_method", QUANTIZATIONS):
        raise section.wrong("quant_method", "absent: this architecture is not read in that format")
    return section.choice("quant_method", {method: method for method in QUANTIZATIONS})
