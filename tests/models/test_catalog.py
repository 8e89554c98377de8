"""Every published shape has the published number of parameters."""

from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.runtime.models import catalog
from penstock.runtime.models.registry import BY_CLASS, BY_MODEL_TYPE

PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "llama-4-scout": 107_769_861_120,
    "llama-4-maverick": 400_711_848_960,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "phi-3-mini": 3_821_079_552,
    "phi-4-mini": 3_836_021_760,
    "gpt2": 124_439_808,
    "olmo-2-7b": 7_298_617_344,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "deepseek-r1": 671_026_404_352,
    "granite-4.0-h-micro": 3_191_396_096,
    "granite-4.0-h-tiny": 6_939_037_248,
    "granite-4.0-h-small": 32_207_337_984,
    "qwen3-next-80b-a3b": 79_674_391_296,
}


def test_every_entry_has_a_published_count() -> None:
    assert catalog.CONFIGS.keys() == PUBLISHED.keys() == catalog.HUB.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert catalog.find(name).num_parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_that_of_transformers(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config: dict[str, Any] = dict(catalog.CONFIGS[name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    assert sum(parameter.numel() for parameter in model.parameters()) == catalog.find(name).num_parameters


def test_active_parameters_leave_idle_experts_out() -> None:
    mixture = catalog.find("mixtral-8x7b")
    idle = 6 * 3 * 4096 * 14_336 * 32
    looked_up = 32_000 * 4096
    assert mixture.num_active_parameters == mixture.num_parameters - idle - looked_up


def test_context_includes_its_scaling() -> None:
    contexts = {name: catalog.find(name).max_context for name in ("llama-3.1-8b", "gpt-oss-20b", "gemma-3-4b")}
    assert set(contexts.values()) == {131_072}


def test_case_does_not_matter_and_a_typo_is_answered_with_the_nearest_name() -> None:
    assert catalog.find("Qwen3-8B") == catalog.find("qwen3-8b")
    with pytest.raises(ConfigError, match=r"did you mean llama-3\.1-8b\?"):
        catalog.find("llama-3.1-8")


def test_specs_can_be_keys() -> None:
    twins = {"llama-3.1-70b": "llama-3.3-70b", "deepseek-v3": "deepseek-r1"}
    assert all(catalog.find(one) == catalog.find(other) for one, other in twins.items())
    assert len({catalog.find(name) for name in PUBLISHED}) == len(PUBLISHED) - len(twins)


def test_an_architecture_is_called_by_its_file() -> None:
    for table in (BY_CLASS, BY_MODEL_TYPE):
        for module in table.values():
            assert module.__name__.startswith("penstock.runtime.models.")  # type: ignore[attr-defined]
    for name in PUBLISHED:
        spec = catalog.find(name)
        module = BY_MODEL_TYPE[catalog.CONFIGS[name]["model_type"]]
        assert module.__name__.rpartition(".")[2] == spec.architecture  # type: ignore[attr-defined]
