"""A conversation with a hybrid of published shape: what a turn computes again, and what a sequence takes."""

from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.runtime.core.batch import Batch, StepOutput
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.models.registry import read_spec
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.sizing import STATE_VALUE_BYTES, Memory, make_scheduler, size_engine

GIB = 2**30
NUM_TURNS = 10


def qwen3_next() -> ModelSpec:
    """Qwen3-Next-80B-A3B."""
    return read_spec(
        {
            "architectures": ["Qwen3NextForCausalLM"],
            "vocab_size": 151_936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 262_144,
            "linear_num_value_heads": 32,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        }
    )


def granite4() -> ModelSpec:
    """Granite 4.0 H Micro."""
    return read_spec(
        {
            "architectures": ["GraniteMoeHybridForCausalLM"],
            "vocab_size": 100_352,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "mamba_n_heads": 64,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "shared_intermediate_size": 8192,
            "num_local_experts": 0,
            "position_embedding_type": "nope",
            "rms_norm_eps": 1e-5,
            "layer_types": ["attention" if number in (5, 15, 25, 35) else "mamba" for number in range(40)],
        }
    )


def drawn(batch: Batch, number: int) -> StepOutput:
    return StepOutput(tuple((7 + number % 89,) * chunk.samples for chunk in batch.chunks))


def recomputed_fraction(spec: ModelSpec, num_users: int = 4) -> float:
    """Share of prompt tokens from the second turn on that had been computed before and are computed again, of users who
    talk in turn; what a turn brings anew is not counted as such."""
    config = EngineConfig(ModelConfig(max_context=32_768), CacheConfig(), SchedulerConfig(max_sequences=16))
    scheduler = make_scheduler(config, size_engine(config, spec, Memory(free_bytes=200 * GIB, weight_bytes=100 * GIB)))
    histories = [(user, *range(50, 50 + 317 + 41 * user)) for user in range(num_users)]
    known = [0] * num_users
    again = total = step = 0
    for turn in range(NUM_TURNS):
        for user in range(num_users):
            params = SamplingParams(temperature=0.0, max_tokens=120 + 37 * turn % 91)
            scheduler.add(Request(request_id=turn * num_users + user, prompt=histories[user], params=params), 0.0)
        said: list[list[int]] = [[] for _ in range(num_users)]
        while scheduler.has_work:
            batch = scheduler.schedule(0.0)
            assert batch is not None
            step += 1
            for delta in scheduler.commit(batch, drawn(batch, step), 0.0):
                user = delta.request_id % num_users
                said[user].extend(delta.token_ids)
                if turn and delta.prefix is not None:
                    again += max(known[user] - delta.prefix.num_tokens, 0)
                    total += len(histories[user])
        for user in range(num_users):
            histories[user] += tuple(said[user])
            known[user] = len(histories[user]) - 1  # the last token was drawn, not computed
            histories[user] += tuple(range(20 + turn, 20 + turn + 45 + 13 * user))
    scheduler.check()
    return again / total


def test_ten_turns_compute_hardly_anything_again() -> None:
    for spec in (qwen3_next(), granite4()):
        assert recomputed_fraction(spec) < 0.05


def test_a_state_has_one_size_whatever_the_context() -> None:
    for spec, num_bytes in (
        (qwen3_next(), 36 * 4 * (8192 * 3 + 32 * 128 * 128)),
        (granite4(), 36 * 4 * (4352 * 3 + 64 * 64 * 128)),
    ):
        (state,) = [group for group in spec.cache_groups if group.kind == "state"]
        assert state.values_per_sequence * STATE_VALUE_BYTES == num_bytes
        assert state.values_in_sight(100) == state.values_in_sight(200_000)
