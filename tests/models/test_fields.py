"""Untrusted settings: whatever a file says is read as meant or refused by name, before anything is sized by it."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ModelFileError
from penstock.runtime.models import catalog
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.shape import MAX_EXPERTS, MAX_LAYERS
from penstock.runtime.models.registry import read_config, read_gguf
from penstock.runtime.models.spec import GQA, MLA

SMALL = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
HEAD: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.vocab_size": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 48,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.context_length": 128,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


@pytest.mark.parametrize("name", [*SIZES, "max_position_embeddings"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "32", None, [], {}, float("nan"), 10**9, 10**400])
def test_a_wrong_size_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=rf"config\.json: .*{name}.*it must be a whole number from 1 to"):
        read_config(SMALL | {name: value})


@pytest.mark.parametrize("name", [*SIZES, "max_position_embeddings", "rms_norm_eps"])
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(ModelFileError, match=f"there is no {name}"):
        read_config({key: value for key, value in SMALL.items() if key != name})


@pytest.mark.parametrize("key", [key for key in HEAD if key not in ("general.architecture", "llama.vocab_size")])
def test_a_gguf_key_is_named_when_it_is_missing_or_wrong(key: str) -> None:
    if key != "llama.feed_forward_length":
        with pytest.raises(ModelFileError, match=f"there is no {key}"):
            read_gguf({name: value for name, value in HEAD.items() if name != key}, ())
    with pytest.raises(ModelFileError, match=f"GGUF metadata: {key} is "):
        read_gguf(HEAD | {key: "many"}, ())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; it must be one of silu"),
        ({"attention_bias": 1}, "attention_bias is 1; it must be true or false"),
        ({"num_attention_heads": 5}, "cannot be shared by 5 heads"),
        ({"num_key_value_heads": 3}, "cannot share 3 key-value heads evenly"),
        ({"head_dim": 7}, "they must be pairs"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\]; it must be an object"),
        ({"rope_scaling": {"type": "mrope"}}, "rope_scaling.type is 'mrope'; it must be one of default"),
        ({"rope_scaling": {"rope_type": "linear"}}, "there is no rope_scaling.factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("inf")}}, "rope_scaling.factor is inf"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 1e6}, "max_position_embeddings": 2**20},
            "tokens; at most",
        ),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}}, "a list of 4"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
            "high_freq_factor is 1; it must be above",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; it must be absent or 1"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_method is 'hqq'; it must be one of mxfp4"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "not read in that format"),
        ({"model_type": "lama"}, "did you mean llama"),
        ({"architectures": ["LlamaForCausalLm"]}, "did you mean LlamaForCausalLM"),
        ({"architectures": []}, "architectures is"),
    ],
)
def test_a_setting_that_is_not_built_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        read_config(SMALL | change)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mistral-7b", {"attention_bias": True}),
        ("gemma-2-9b", {"use_bidirectional_attention": True}),
        ("gemma-3-4b", {"attention_bias": True}),
        ("phi-3-mini", {"mlp_bias": True}),
        ("phi-4-mini", {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}),
        ("gpt2", {"scale_attn_weights": False}),
        ("gpt2", {"add_cross_attention": True}),
        ("gpt2", {"n_positions": 2**24}),
        ("olmo-2-7b", {"clip_qkv": 8.0}),
        ("gpt-oss-20b", {"swiglu_limit": 5.0}),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}),
        ("qwen3-30b-a3b", {"moe_intermediate_size": 0}),
        ("qwen3-8b", {"sliding_window": -1, "use_sliding_window": True}),
    ],
)
def test_each_architecture_refuses_what_it_does_not_build(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=next(iter(change))):
        read_config(catalog.CONFIGS[name] | change)


def test_a_message_stays_short_whatever_the_file_holds() -> None:
    for change in ({"hidden_size": "9" * 10**6}, {"model_type": "l" * 10**6}, {"rope_scaling": {"type": "x" * 10**6}}):
        with pytest.raises(ModelFileError) as caught:
            read_config(SMALL | change)
        assert len(str(caught.value)) < 1000


def test_factor_tensors_must_be_read_when_they_are_there() -> None:
    with pytest.raises(ModelFileError, match=r"has rope_freqs\.weight, which scales RoPE"):
        read_gguf(HEAD, ["rope_freqs.weight"])
    with pytest.raises(ModelFileError, match="a list of 4"):
        read_gguf(HEAD, ["rope_freqs.weight"], {"rope_freqs.weight": [1.0]})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.attention.scale", 0.5),
        ("llama.logit_scale", 2.0),
        ("llama.rope.dimension_count", 4),
        ("llama.attention.value_length", 16),
        ("llama.expert_shared_count", 1),
        ("llama.expert_count", 2**20),
        ("llama.attention.head_count", [4, 4]),
        ("llama.rope.scaling.type", "longrope"),
    ],
)
def test_a_gguf_key_that_is_not_built_is_refused_by_name(key: str, value: Any) -> None:
    experts = {"llama.expert_count": 4, "llama.expert_used_count": 2} if "shared" in key else {}
    with pytest.raises(ModelFileError, match=f"GGUF metadata: {key} is "):
        read_gguf(HEAD | experts | {key: value}, ())


LARGEST = SMALL | {"num_hidden_layers": MAX_LAYERS, "model_type": "mixtral", "num_experts_per_tok": 1}


def test_layers_and_experts_are_bounded_together() -> None:
    with pytest.raises(ModelFileError, match="num_local_experts"):
        read_config(LARGEST | {"num_local_experts": 2 * MAX_EXPERTS // MAX_LAYERS})


@pytest.mark.slow
def test_the_largest_config_is_read_with_little_memory() -> None:
    tracemalloc.start()
    read_config(LARGEST | {"num_local_experts": MAX_EXPERTS // MAX_LAYERS})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


def test_null_counts_as_absent() -> None:
    nulls = {"head_dim": None, "num_key_value_heads": None, "rope_scaling": None, "hidden_act": None}
    assert read_config(SMALL | nulls) == read_config(SMALL)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["yarn", "silu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(catalog.CONFIGS)), data=st.data())
def test_any_config_is_read_or_refused(name: str, data: st.DataObject) -> None:
    config = json.loads(json.dumps(catalog.CONFIGS[name]))
    extra = ["rope_parameters", "layer_types", "head_dim", "sliding_window", "quantization_config", "text_config"]
    for field in data.draw(st.lists(st.sampled_from([*config, *extra]), min_size=1, max_size=3)):
        config[field] = data.draw(values)
    try:
        spec = read_config(config).spec
    except ModelFileError:
        return
    assert spec.num_parameters > 0
    assert all(layer.attention.scale > 0 for layer in spec.layers if isinstance(layer.attention, GQA | MLA))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_gguf_head_is_read_or_refused(data: st.DataObject) -> None:
    extra = ["llama.rope.scaling.type", "llama.rope.freq_base", "llama.expert_count", "llama.attention.sliding_window"]
    head = dict(HEAD)
    for key in data.draw(st.lists(st.sampled_from([*HEAD, *extra]), min_size=1, max_size=3)):
        head[key] = data.draw(values)
    try:
        read_gguf(head, ())
    except ModelFileError:
        return


def test_expect_tells_true_from_one() -> None:
    with pytest.raises(ModelFileError):
        Fields({"flag": 1}).expect("flag", True)
