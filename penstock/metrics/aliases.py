"""Names that begin with `llm_`, for dashboards made for no engine in particular: the same numbers once more."""

ALIASES: dict[str, tuple[str, ...]] = {
    "vllm:request_success_total": ("llm_requests_total",),
    "vllm:prompt_tokens_total": ("llm_prompt_tokens_total",),
    "vllm:prompt_tokens_cached_total": ("llm_cached_tokens_total",),
    "vllm:generation_tokens_total": ("llm_completion_tokens_total", "llm_tokens_generated_total"),
    "vllm:time_to_first_token_seconds": ("llm_time_to_first_token_seconds", "llm_ttft_seconds"),
    "vllm:inter_token_latency_seconds": ("llm_inter_token_latency_seconds",),
    "vllm:request_time_per_output_token_seconds": ("llm_time_per_output_token_seconds",),
    "vllm:e2e_request_latency_seconds": ("llm_request_duration_seconds", "llm_request_latency_seconds"),
    "vllm:request_queue_time_seconds": ("llm_queue_time_seconds",),
    "vllm:num_requests_waiting": ("llm_queue_depth",),
    "vllm:num_requests_running": ("llm_requests_running", "llm_active_requests"),
    "vllm:kv_cache_usage_perc": ("llm_kv_cache_usage_ratio", "llm_kv_cache_utilization"),
    "penstock_router_requests_total": ("llm_router_requests_total",),
    "penstock_router_first_byte_seconds": ("llm_router_time_to_first_byte_seconds",),
    "penstock_router_request_seconds": ("llm_router_request_duration_seconds",),
    "penstock_device_memory_used_bytes": ("llm_gpu_memory_used_bytes",),
    "penstock_gateway_tokens_total": ("llm_tenant_tokens_total",),
    "penstock_gateway_cost_dollars_total": ("llm_tenant_cost_dollars_total",),
}
"""By the family that has the numbers: the names in use."""


def aliased(family: str, lines: list[str]) -> list[str]:
    """A family's lines under its other names; none if it has none."""
    return [line.replace(family, alias, 1) for alias in ALIASES.get(family, ()) for line in lines]
