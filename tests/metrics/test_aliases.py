"""The same numbers under names of no engine in particular."""

from penstock.metrics.aliases import ALIASES
from penstock.metrics.exposition import Buckets, Counter, Gauge, exposition


def test_an_alias_says_what_its_family_says():
    count, wait = (
        Counter("vllm:prompt_tokens", "Prompt tokens"),
        Buckets("vllm:time_to_first_token_seconds", "", (1, 2)),
    )
    count.add(7, (("kind", "vllm:prompt_tokens_total"),))
    wait.add(1.5)
    text = exposition([count, wait, Gauge("vllm:num_requests_waiting", "", lambda: 3.0), Gauge("other", "", float)], {})
    assert 'llm_prompt_tokens_total{kind="vllm:prompt_tokens_total"} 7' in text
    assert 'llm_time_to_first_token_seconds_bucket{le="2"} 1' in text
    assert "# TYPE llm_time_to_first_token_seconds histogram" in text
    assert "\nllm_queue_depth 3\n" in text
    names = [name for names in ALIASES.values() for name in names]
    assert len(set(names)) == len(names)
    assert not set(names) & set(ALIASES)


EIGHT = (
    "llm_requests_total", "llm_tokens_generated_total", "llm_ttft_seconds", "llm_request_latency_seconds",
    "llm_active_requests", "llm_queue_depth", "llm_kv_cache_utilization", "llm_gpu_memory_used_bytes",
)  # fmt: skip


def test_the_eight_names_that_operators_expect_are_there():
    assert set(EIGHT) <= {name for names in ALIASES.values() for name in names}
