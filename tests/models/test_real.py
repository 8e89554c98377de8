"""Real checkpoints: every tensor is read, and the numbers are those of `transformers` over the same weights."""

from itertools import chain
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from penstock.runtime.formats.open import open_checkpoint
from penstock.runtime.layers.build import build_model
from penstock.runtime.models import catalog
from penstock.runtime.models.weights import sources
from tests import real
from tests.models.ours import Ours, read_model
from tests.real import DEFAULT, GEMMA, model_path

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
FFN_NORM = {"llama": {"ffn_norm": "post_attention_layernorm"}}
FFN_NORM["gemma3_text"] = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm"}


@pytest.mark.parametrize(("file", "name"), [(DEFAULT, "smollm2-135m"), (GEMMA, "gemma-3-270m")])
def test_file_has_the_catalogued_shape_and_no_tensor_to_spare(file: str, name: str) -> None:
    path = model_path(file)
    checkpoint = open_checkpoint(path)
    model = read_model(path, checkpoint)
    assert set(chain.from_iterable(sources(recipe) for recipe in model.recipes.values())) == set(checkpoint.names)
    assert model.recipes.keys() == dict(build_model(model.spec, torch.float32).named_parameters()).keys()
    expected = catalog.find(name)
    assert [layer.attention for layer in model.spec.layers] == [layer.attention for layer in expected.layers]
    assert model.spec.num_parameters == expected.num_parameters
    assert model.spec.max_context == expected.max_context


def their_weights(path: Path, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A GGUF file's weights under the names and in the order of `transformers`."""
    names = LAYER_NAMES | FFN_NORM[config["model_type"]]
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        name = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}.get(
            tensor.name
        )
        if name is None:
            _, index, part, kind = tensor.name.split(".")
            name = f"model.layers.{index}.{names[part]}.{kind}"
        if config["model_type"] == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = values.view(heads, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
        if config["model_type"] == "gemma3_text" and name.endswith("norm.weight"):
            values -= 1.0
        state[name] = values
    return state


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), [(DEFAULT, "smollm2-135m"), (GEMMA, "gemma-3-270m")])
@torch.inference_mode()
def test_logits_and_greedy_tokens(file: str, name: str) -> None:
    path = model_path(file)
    config = dict(catalog.CONFIGS[name])
    settings = transformers.AutoConfig.for_model(**config)
    theirs = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    missing, unexpected = theirs.load_state_dict(their_weights(path, config), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    theirs.tie_weights()
    prompt = torch.randint(5, 40_000, (600,), generator=torch.Generator().manual_seed(0)).tolist()
    tokens, logits = Ours(path, 1024).greedy(prompt, split=250, num_steps=24)
    expected = theirs(input_ids=torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(logits, expected, atol=2e-3, rtol=1e-4)
    assert tokens[len(prompt) :] == expected.argmax(-1)[len(prompt) - 1 : -1].tolist()


MINILM = {
    "architectures": ["BertModel"],
    "vocab_size": 30_522,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


@torch.inference_mode()
def test_encoder_vector() -> None:
    path = model_path(real.MINILM) / "model.safetensors"
    theirs = transformers.BertModel(transformers.BertConfig(**MINILM), add_pooling_layer=False).eval()
    checkpoint = load_file(path)
    theirs.load_state_dict({name: values for name, values in checkpoint.items() if "pool" not in name}, strict=False)
    ours = Ours(path, 512, MINILM)
    prompt = [101, *torch.randint(1000, 30_000, (60,), generator=torch.Generator().manual_seed(0)).tolist(), 102]
    states = theirs(input_ids=torch.tensor([prompt])).last_hidden_state[0]
    expected = torch.nn.functional.normalize(states.mean(0), dim=0)
    torch.testing.assert_close(ours.encode(prompt), expected, atol=1e-5, rtol=1e-5)
