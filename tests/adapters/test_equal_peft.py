"""Every kind of adapter gives the logits of peft, on every kind of architecture."""

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.runtime.execution.adapters.modules import ModuleBank
from penstock.runtime.execution.load.adapters import read_adapter
from penstock.runtime.layers.adapted.step import AdapterStep, TokenSlots
from penstock.runtime.layers.decoder import Decoder
from tests.adapters.making import make_adapter
from tests.models.ours import Ours
from tests.models.tiny import DECODERS

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"target_modules": ALL}),
    "some modules": ("llama", {"target_modules": ["q_proj", "v_proj", "down_proj"]}),
    "rslora": ("llama", {"target_modules": ALL, "use_rslora": True}),
    "patterns": (
        "llama",
        {
            "target_modules": ALL,
            "rank_pattern": {"layers.1.self_attn.q_proj": 9, "up_proj": 2},
            "alpha_pattern": {"up_proj": 3, r"^model\.layers\.0\.mlp\.down_proj": 11},
        },
    ),
    "dora": ("llama", {"target_modules": ALL, "use_dora": True}),
    "dora with biases": ("llama-biases", {"target_modules": ALL, "use_dora": True}),
    "embedding": ("llama", {"target_modules": ["q_proj", "embed_tokens"]}),
    "head": ("llama", {"target_modules": ["q_proj", "lm_head"]}),
    "head of a tied model": ("llama-tied", {"target_modules": ["q_proj", "lm_head"]}),
    "dora head": ("llama", {"target_modules": ["q_proj", "lm_head"], "use_dora": True}),
    "saved modules": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    "qwen2": ("qwen2", {"target_modules": ALL}),
    "qwen3": ("qwen3", {"target_modules": ALL}),
    "gemma2": ("gemma2", {"target_modules": [*ALL, "embed_tokens"]}),
    "gemma3": ("gemma3", {"target_modules": ALL}),
    "phi3": ("phi3", {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "gpt2 dora": ("gpt2", {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "use_dora": True}),
    "olmo2": ("olmo2", {"target_modules": ALL}),
    "experts": ("qwen3-moe", {"target_modules": ["q_proj", "gate"], "target_parameters": EXPERTS}),
    "mixtral": ("mixtral", {"target_modules": ["o_proj"], "target_parameters": EXPERTS}),
}


def adapted(ours: Ours, folder: Path, num_slots: int = 2) -> tuple[ModuleBank, AdapterStep]:
    assert isinstance(ours.module, Decoder)
    step = AdapterStep()
    bank = ModuleBank(ours.module, ours.spec, step, num_slots)
    bank.put(1, bank.prepare(read_adapter(folder, ours.spec)))
    return bank, step


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_logits_are_those_of_peft(kind: str, tmp_path: Path) -> None:
    name, settings = KINDS[kind]
    variant = DECODERS[name]
    variant.save(tmp_path / "base")
    theirs = make_adapter(variant, tmp_path / "adapter", **settings)
    ours = Ours(tmp_path / "base", variant.context)
    bank, step = adapted(ours, tmp_path / "adapter")
    prompt = torch.randint(0, 96, (29,), generator=torch.Generator().manual_seed(3)).tolist()
    step.tokens = TokenSlots(None, torch.ones(len(prompt), dtype=torch.int32))
    expected = theirs(input_ids=torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(ours.logits(prompt, 0), expected, atol=2e-4, rtol=2e-4)
    with theirs.disable_adapter():
        plain = theirs(input_ids=torch.tensor([prompt])).logits[0]
    assert not torch.allclose(plain, expected, atol=1e-2)
    step.tokens = None
    torch.testing.assert_close(ours.logits(prompt, 0), plain, atol=2e-4, rtol=2e-4)
    bank.clear(1)
    step.tokens = TokenSlots(None, torch.ones(len(prompt), dtype=torch.int32))
    torch.testing.assert_close(ours.logits(prompt, 0), plain, atol=2e-4, rtol=2e-4)
