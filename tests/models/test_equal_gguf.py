"""A GGUF file gives the logits of the model it was made from."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from penstock.runtime.models.registry import read_config
from penstock.runtime.models.spec import ModelSpec
from tests.models.gguf_writing import write_gguf
from tests.models.ours import Ours
from tests.models.test_equal_transformers import check_equal, prompts
from tests.models.tiny import DECODERS, VARIANTS

UNWRITTEN = {
    "llama-gelu": "GGUF has no key for the activation",
    "llama-dynamic": "llama.cpp scales so only on demand",
    "llama-yarn-mscale": "llama.cpp writes these keys for other architectures only",
    "qwen2-window": "llama.cpp leaves the window out",
    "qwen3-window": "llama.cpp leaves the window out",
    "qwen3-biases": "llama.cpp reads none",
    "qwen3-moe-unscaled": "llama.cpp always rescales",
    "qwen3-moe-dense-layers": "llama.cpp reads none",
    "gemma2": "GGUF has no key for the scale",
    "gemma2-uncapped": "llama.cpp always caps",
    "gemma3": "GGUF has no key for the scale",
    "gemma3-scaled": "this pattern of layers has no key",
    "gemma3-vision": "the vision part is a file of its own",
    "gpt2-variants": "GGUF has no keys for these",
    **dict.fromkeys(
        (
            *("lfm2", "lfm2-biases", "granite4", "granite4-attention", "granite4-dense"),
            *("qwen3-next", "qwen3-next-attention", "qwen3-next-dense", "falcon-h1", "falcon-h1-normed"),
            *("nemotron-h", "nemotron-h-biases"),
        ),
        "GGUF files of it are not read",
    ),
    **dict.fromkeys(
        ("deepseek-v2", "deepseek-v2-groups", "deepseek-v3", "deepseek-v3-yarn", "glm4-lite"), "nor of this"
    ),
}
INSTEAD = {
    "gemma2-own-scale": replace(
        DECODERS["gemma2"], settings=DECODERS["gemma2"].settings | {"query_pre_attn_scalar": 16}
    ),
    "gemma3-own-scale": replace(
        DECODERS["gemma3"],
        settings=DECODERS["gemma3"].settings
        | {
            "query_pre_attn_scalar": 16,
            "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}},
        },
    ),
}
WRITTEN = {name: variant for name, variant in DECODERS.items() if name not in UNWRITTEN} | INSTEAD


@pytest.mark.parametrize("name", WRITTEN)
def test_logits_and_greedy_tokens(name: str, tmp_path: Path) -> None:
    variant = WRITTEN[name]
    theirs = variant.model()
    path = tmp_path / "model.gguf"
    write_gguf(theirs, variant.family, path)
    ours = Ours(path, variant.context)
    check_same_spec(ours.spec, read_config(variant.config()).spec)
    check_equal(ours, theirs, variant)


def check_same_spec(found: ModelSpec, expected: ModelSpec) -> None:
    """All but numbers that GGUF rounds and factors it spells out."""
    assert found.num_parameters == expected.num_parameters
    assert found.max_context == expected.max_context
    assert found.tied_embedding == expected.tied_embedding
    for ours, theirs in zip(found.layers, expected.layers, strict=True):
        assert (ours.mlp, ours.norms, ours.attention.window) == (theirs.mlp, theirs.norms, theirs.attention.window)


def test_encoder_vector(tmp_path: Path) -> None:
    theirs = VARIANTS["bert"].model()
    path = tmp_path / "model.gguf"
    write_gguf(theirs, "Bert", path)
    (prompt,) = prompts((20,))
    states = theirs(input_ids=torch.tensor([prompt])).last_hidden_state[0]
    expected = torch.nn.functional.normalize(states.mean(0), dim=0)
    torch.testing.assert_close(Ours(path, 256).encode(prompt), expected, atol=1e-5, rtol=1e-5)
