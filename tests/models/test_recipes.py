"""Recipes and checkpoints fit: nothing is missing, nothing is left over, every parameter is made."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from transformers.core_model_loading import revert_weight_conversion

from penstock.runtime.layers.build import build_model
from penstock.runtime.models import catalog, naming
from penstock.runtime.models.registry import read_config
from penstock.runtime.models.spec import GatedMLP, MoE
from penstock.runtime.models.weights import Tensor, sources
from tests.models.tiny import VARIANTS, is_ignored


@pytest.mark.parametrize("name", VARIANTS)
def test_every_tensor_that_transformers_saves_is_read(name: str) -> None:
    variant = VARIANTS[name]
    with torch.device("meta"):
        model = variant.model()
    saved = set(revert_weight_conversion(model, model.state_dict()))
    if read_config(variant.config()).spec.tied_embedding:
        saved = {name for name in saved if not name.endswith("lm_head.weight")}
    found = read_config(variant.config(), saved)
    read = set(chain.from_iterable(sources(recipe) for recipe in found.recipes.values()))
    assert read == {name for name in saved if not is_ignored(name)}


@pytest.mark.parametrize("name", VARIANTS)
def test_parameter_count_is_that_of_transformers(name: str) -> None:
    variant = VARIANTS[name]
    with torch.device("meta"):
        model = variant.model()
    count = sum(parameter.numel() for name, parameter in model.named_parameters() if not is_ignored(name))
    assert read_config(variant.config()).spec.num_parameters == count


@pytest.mark.parametrize("name", VARIANTS)
def test_every_parameter_has_a_recipe_and_every_recipe_a_parameter(name: str) -> None:
    found = read_config(VARIANTS[name].config())
    assert found.recipes.keys() == dict(build_model(found.spec, torch.float32).named_parameters()).keys()


@pytest.mark.parametrize(
    ("name", "published", "saved"),
    [
        ("gpt2", "", "transformer."),
        ("llama", "", "model."),
        ("bert", "bert.", ""),
        ("gemma3", "language_model.model.", "model."),
        ("gemma3", "model.language_model.", "model."),
    ],
)
def test_names_are_found_under_every_prefix_in_use(name: str, published: str, saved: str) -> None:
    config = VARIANTS[name].config()
    usual = {source for recipe in read_config(config).recipes.values() for source in sources(recipe)}
    names = {published + source.removeprefix(saved) if source.startswith(saved) else source for source in usual}
    found = read_config(config, names)
    assert {source for recipe in found.recipes.values() for source in sources(recipe)} == names


def test_the_oldest_names_of_norms() -> None:
    config = VARIANTS["bert"].config()
    usual = {source for recipe in read_config(config).recipes.values() for source in sources(recipe)}
    old = {
        source.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        for source in usual
    }
    found = read_config(config, old)
    assert {source for recipe in found.recipes.values() for source in sources(recipe)} == old


def test_experts_of_older_gguf_files_come_one_by_one() -> None:
    mlp = MoE(3, 1, GatedMLP(32, "silu"), normalize=True)
    spec = replace(catalog.find("mixtral-8x7b"), layers=(replace(catalog.find("mixtral-8x7b").layers[0], mlp=mlp),))
    names = [f"blk.0.ffn_{part}.{index}.weight" for part in ("gate", "up", "down") for index in range(3)]
    found = naming.gguf_recipes(spec, names)
    read = {source for recipe in found.values() for source in sources(recipe)}
    assert set(names) < read
    assert not any("exps" in source for source in read)


def test_fused_parts_of_gguf_files_are_taken_as_they_are() -> None:
    spec = catalog.find("qwen3-30b-a3b")
    names = {f"blk.{i}.{part}.weight" for i in range(spec.num_layers) for part in ("attn_qkv", "ffn_gate_up_exps")}
    found = naming.gguf_recipes(spec, names)
    assert names < {source for recipe in found.values() for source in sources(recipe)}
    assert found["layers.7.attention.qkv.weight"] == Tensor("blk.7.attn_qkv.weight")
