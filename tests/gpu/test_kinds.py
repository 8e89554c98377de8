"""Every architecture with other kinds of cache than keys and values, on the GPU: the tokens that the CPU draws.

Tiny shapes, random weights in float32; chunks, prefixes found again, preemption, eight at once; with and without drafts.
"""

from typing import Any

import torch

from penstock.runtime.core.kinds.groups import BlockGroup, CacheGroups
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.drafters.table import make_speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.choose import make_runner
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.kinds.forgetting import bounded
from penstock.runtime.models.registry import read_spec
from penstock.runtime.models.spec import ModelSpec
from tests.gpu import machine

BLOCK_SIZE, CONTEXT, NUM_TOKENS, NUM_STATES, NUM_BLOCKS = 16, 256, 20, 40, 26
SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3NextForCausalLM": {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
    "GraniteMoeHybridForCausalLM": MAMBA
    | {
        "shared_intermediate_size": 96,
        "num_local_experts": 0,
        "position_embedding_type": "nope",
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
    },
    "FalconH1ForCausalLM": MAMBA | {"mamba_d_ssm": 256, "key_multiplier": 0.6},
    "NemotronHForCausalLM": {
        "mamba_num_heads": 8,
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "n_groups": 2,
        "hybrid_override_pattern": "M-M*-MM-",
    },
    "Lfm2ForCausalLM": {
        "norm_eps": 1e-5,
        "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
    },
    "DeepseekV3ForCausalLM": {
        "num_key_value_heads": 4,
        "q_lora_rank": 48,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
    },
}


def specs() -> dict[str, ModelSpec]:
    found = {name: read_spec(SMALL | {"architectures": [name]} | rest) for name, rest in FAMILIES.items()}
    llama = read_spec(SMALL | {"architectures": ["LlamaForCausalLM"]})
    found["streaming"] = bounded(llama, "first", 4, 60, CONTEXT)
    found["h2o"] = bounded(llama, "heaviest", 32, 32, CONTEXT)
    return found


def models(spec: ModelSpec) -> tuple[Decoder, Decoder]:
    """On the CPU, and its numbers on the GPU."""
    here = dummy_model(spec, torch.device("cpu"), torch.float32)
    device = torch.device("cpu" if machine.IS_DRY else "cuda")
    there = dummy_model(spec, device, torch.float32)
    assert isinstance(here, Decoder)
    assert isinstance(there, Decoder)
    numbers = dict(here.named_parameters())
    for name, parameter in there.named_parameters():
        parameter.data = numbers[name].data.to(device)
    return here, there


def asked() -> list[Request]:
    generator = torch.Generator().manual_seed(3)
    stems = torch.randint(0, 512, (2, 40), generator=generator).tolist()
    ends = torch.randint(0, 512, (8, 90), generator=generator).tolist()
    return [
        Request(
            request_id=number,
            prompt=(*stems[number % 2], *ends[number][: 3 + 11 * number]),
            params=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS),
        )
        for number in range(8)
    ]


def answers(model: Decoder, num_blocks: int, drafter: str | None = None) -> list[list[int]]:
    spec = model.spec
    first, *others = [BlockGroup(*group) for group in spec.cache_layout().groups]
    num_states = NUM_STATES if any(group.kind == "state" for group in spec.cache_groups) else 0
    groups = CacheGroups(first, tuple(others), num_states)
    limits = Limits(num_blocks, BLOCK_SIZE, CONTEXT, 64, 8, 100, 10_000, groups=groups)
    runner = make_runner(model, RunnerShape(num_blocks, BLOCK_SIZE, 8, CONTEXT, True, num_states=num_states))
    speculator = make_speculator(drafter, 3) if drafter else None
    engine = Engine(Scheduler(limits), runner, lambda: 0.0, depth=runner.depth, speculator=speculator)
    for request in asked():
        engine.submit(request)
    said: list[list[int]] = [[] for _ in asked()]
    while engine.has_work:
        for delta in engine.step():
            said[delta.request_id].extend(delta.token_ids)
    engine.scheduler.check()
    return said


def check(name: str) -> None:
    here, there = models(specs()[name])
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny products
    right = answers(here, 200)
    torch.set_num_threads(num_threads)
    for num_blocks, drafter in ((NUM_BLOCKS, None), (200, "ngram")):
        found = answers(there, num_blocks, drafter)
        different = [number for number, pair in enumerate(zip(found, right)) if pair[0] != pair[1]]
        assert len(different) <= 1, f"{name}, {num_blocks} blocks, drafter {drafter}: texts {different} differ"


def test_qwen3_next() -> None:
    check("Qwen3NextForCausalLM")


def test_granite4() -> None:
    check("GraniteMoeHybridForCausalLM")


def test_falcon_h1() -> None:
    check("FalconH1ForCausalLM")


def test_lfm2() -> None:
    check("Lfm2ForCausalLM")


def test_nemotron_h() -> None:
    check("NemotronHForCausalLM")


def test_deepseek() -> None:
    check("DeepseekV3ForCausalLM")


def test_attention_that_forgets() -> None:
    check("streaming")
    check("h2o")
