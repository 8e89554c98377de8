"""Angles are those of transformers, bit for bit, for every scaling."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from penstock.runtime.models.spec import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)
from penstock.runtime.ops.rope import angle_table, rotate

CPU = torch.device("cpu")
SHORT, LONG = (tuple(start + step * place for place in range(16)) for start, step in ((1.0, 0.1), (1.5, 0.7)))
CASES = {
    "plain": (Rope(32, 50_000.0), {}),
    "linear": (Rope(32, 50_000.0, LinearScaling(3.0)), {"rope_type": "linear", "factor": 3.0}),
    "dynamic": (Rope(32, 50_000.0, DynamicScaling(2.0, 128)), {"rope_type": "dynamic", "factor": 2.0}),
    "yarn": (
        Rope(32, 50_000.0, YarnScaling(4.0, 64, attention_factor=1.25)),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.25},
    ),
    "yarn untruncated": (
        Rope(32, 50_000.0, YarnScaling(4.0, 64, 16.0, 2.0, 1.1, truncate=False)),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.1,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
        },
    ),
    "llama3": (
        Rope(32, 50_000.0, Llama3Scaling(8.0, 1.0, 4.0, 64)),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "longrope long": (
        Rope(32, 50_000.0, LongRopeScaling(SHORT, LONG, 64, 1.3)),
        {
            "rope_type": "longrope",
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
            "original_max_position_embeddings": 64,
            "attention_factor": 1.3,
        },
    ),
}


def theirs(settings: dict, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=128,
        rope_parameters={"rope_theta": 50_000.0, "rope_type": "default"} | settings,
    )
    return LlamaRotaryEmbedding(config)(torch.empty(0), torch.arange(context)[None])


@pytest.mark.parametrize("name", CASES)
def test_tables(name: str) -> None:
    rope, settings = CASES[name]
    table = angle_table(rope, 200, CPU)
    cosine, sine = theirs(settings, 200)
    assert torch.equal(table.cosine, cosine[0, :, :16])
    assert torch.equal(table.sine, sine[0, :, :16])


def test_short_factors_serve_short_contexts() -> None:
    rope, settings = CASES["longrope long"]
    assert torch.equal(angle_table(rope, 64, CPU).cosine, theirs(settings, 64)[0][0, :, :16])


def test_rotation_and_what_it_leaves_alone() -> None:
    x = torch.randn((9, 3, 48), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 2, 5, 9, 30, 31, 100, 199])
    turned = rotate(x, angle_table(CASES["plain"][0], 200, CPU).at(positions))
    cosine, sine = (part[:, positions] for part in theirs({}, 200))
    expected, _ = apply_rotary_pos_emb(
        x[None, ..., :32].transpose(1, 2), x[None, ..., :32].transpose(1, 2), cosine, sine
    )
    torch.testing.assert_close(turned[..., :32], expected[0].transpose(0, 1), atol=1e-6, rtol=1e-6)
    assert torch.equal(turned[..., 32:], x[..., 32:])
