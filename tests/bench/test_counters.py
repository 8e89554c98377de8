"""Laws of a server's counters: known names are summed over labels, growth is told, a restart is not mistaken for it."""

from penstock.tools.bench.client.counters import Counters, parse_counters

TEXT = """# HELP vllm:prefix_cache_hits_total hits
vllm:prefix_cache_hits_total{engine="0"} 16.0
vllm:prefix_cache_hits_total{engine="1"} 4
vllm:prefix_cache_queries_total{engine="0"} 1e2
vllm:request_success_total{finished_reason="stop"} 3
vllm:request_success_total{finished_reason="length"} 2
nonsense
vllm:num_preemptions_total nothing
"""


def test_counters_are_summed_over_labels():
    assert parse_counters(TEXT) == Counters(20.0, 100.0, 5.0, None)
    assert parse_counters("sglang:cached_tokens_total 7\nsglang:prompt_tokens_total 9") == Counters(7.0, 9.0)
    assert parse_counters("") == parse_counters("\x00{}{} 5 6\n") == Counters()


def test_growth_is_told_and_a_restart_is_not_mistaken_for_it():
    later = Counters(25.0, 130.0, 4.0, 1.0)
    assert later.since(parse_counters(TEXT)) == Counters(5.0, 30.0, None, None)
