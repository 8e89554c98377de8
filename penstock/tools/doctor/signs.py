"""The vital signs of a server: everything the rules look at, out of two looks at it some seconds apart."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from penstock.metrics.page import Page
from penstock.tools.doctor.page import Change, measured, measures_of, share

REFUSED, SILENT, UNREACHABLE, UNINTELLIGIBLE = 0.0, 1.0, 2.0, 3.0
"""In place of an HTTP status, where none came."""
OWN_ROUTES = ("/livez", "/readyz", "/health", "/metrics", "/version")
"""What watchers ask, a doctor among them: no part of the load."""
VECTOR_ROUTES = ("/v1/embeddings", "/v1/rerank")
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
CALLS = "penstock_calls_open"
TOKENS, PROMPT_TOKENS = "vllm:generation_tokens_total", "vllm:prompt_tokens_total"
ENDED, STEPS = "vllm:request_success_total", "penstock_engine_steps_total"
HOST = "penstock_host_processor_seconds_total"
ENERGY = ("penstock_gpu_energy_joules_total", "penstock_host_energy_joules_total")
PARAMETERS, WEIGHTS = "penstock_active_parameters", "penstock_weight_bytes"
LEAST_PAGES = 1000
"""Of memory given, below which where they lie is chance."""
KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
ITL = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
TTFT = "vllm:time_to_first_token_seconds"
LAYOUT = "vllm:cache_config_info"
DRAFTS = "vllm:spec_decode_num_draft_tokens_total"


@dataclass(frozen=True, slots=True)
class Look:
    """What a server said at one moment: statuses by path, seconds by path that was answered, and its page of metrics."""

    statuses: Mapping[str, float]
    seconds: Mapping[str, float]
    page: Page


def _unread(calls: float, running: float, waiting: float, change: Change) -> float:
    """Calls for vectors are computed without ever running or waiting, so beside them nothing can be told."""
    num_vectors = _answers(lambda route, _: route in VECTOR_ROUTES)(change)
    return calls - running - waiting if num_vectors == 0.0 else math.nan


def _answers(where: Callable[[str, int], bool]) -> Callable[[Change], float]:
    def is_meant(labels: Mapping[str, str]) -> bool:
        route, status = labels.get("route", ""), labels.get("status", "")
        return route not in OWN_ROUTES and where(route, int(status) if status.isdecimal() else 0)

    return lambda change: change.count("penstock_http_responses_total", is_meant)


def _ended(*reasons: str) -> Callable[[Change], float]:
    def is_meant(labels: Mapping[str, str]) -> bool:
        return not reasons or labels.get("finished_reason") in reasons

    return lambda change: change.count(ENDED, is_meant)


def _of_processors(change: Change, use: str) -> float:
    return share(change.count(HOST, lambda labels: labels.get("use") == use), change.count(HOST))


def _waited_per_s(change: Change) -> float:
    waited = change.rate("penstock_host_waiting_seconds_total")
    return _of_processors(change, "other") if math.isnan(waited) else waited


def _remote_fraction(change: Change) -> float:
    given = change.count("penstock_host_numa_pages_total")
    remote = change.count("penstock_host_numa_pages_total", lambda labels: labels.get("where") == "other")
    return share(remote, given) if given > LEAST_PAGES else math.nan


def _joules(change: Change) -> float:
    """NaN where nothing counts them."""
    return math.fsum(value for name in ENERGY if not math.isnan(value := change.count(name))) or math.nan


def _flops(change: Change) -> float:
    """Operations a second, of all tokens that were computed."""
    cached = change.rate("vllm:prompt_tokens_cached_total")
    return 2.0 * change.gauge(PARAMETERS) * (change.rate(TOKENS) + change.rate(PROMPT_TOKENS) - cached)


def _bytes_read(change: Change) -> float:
    """A second: each step reads the weights, and the cache as far as it is in use."""
    cache = change.largest(KV[0]) * change.gauge("penstock_kv_bytes")
    return change.rate(STEPS) * (change.gauge(WEIGHTS) + cache)


of_machine = partial(measured, of_machine=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """NaN where the server does not report it, or where nothing happened that could be measured."""

    window_s: float
    metrics_status: float = math.nan
    """Statuses of HTTP, or why none came."""
    health_status: float = math.nan
    ready_status: float = math.nan
    health_s: float = math.nan
    """How long /health took, in the better of the two looks."""
    has_restarted: float = measured(lambda change: float(change.has_restarted), default=0.0)
    """1 if another process answered the second time."""

    num_running_before: float = measured("gauge_before", RUNNING)
    num_running: float = measured("gauge", RUNNING)
    num_waiting_before: float = measured("gauge_before", WAITING)
    num_waiting: float = measured("gauge", WAITING)
    kv_usage_fraction: float = measured("largest", *KV)
    num_kv_tokens: float = measured(
        lambda change: change.label(LAYOUT, "block_size") * change.label(LAYOUT, "num_gpu_blocks")
    )
    """Tokens that the KV cache has room for."""
    num_unread_before: float = measured(
        lambda change: _unread(
            change.gauge_before(CALLS), change.gauge_before(RUNNING), change.gauge_before(WAITING), change
        )
    )
    """Calls open although nothing is computed for them."""
    num_unread: float = measured(
        lambda change: _unread(change.gauge(CALLS), change.gauge(RUNNING), change.gauge(WAITING), change)
    )
    num_calls: float = measured("gauge", CALLS)

    prompt_tokens_per_s: float = measured("rate", PROMPT_TOKENS)
    output_tokens_per_s: float = measured("rate", TOKENS)
    started_per_s: float = measured("rate", f"{TTFT}_count")
    """Requests whose first token came."""
    ended_per_s: float = measured("rate", ENDED)
    steps_per_s: float = measured("rate", STEPS)
    refused_per_s: float = measured("rate", "penstock_requests_refused_total")
    preemptions_per_s: float = measured("rate", "vllm:num_preemptions_total")
    num_errors: float = measured(_ended("error"))
    """Requests of the window that ended in an error, and those that their clients gave up."""
    num_aborts: float = measured(_ended("abort"))
    num_ended: float = measured(_ended())
    num_new_restarts: float = measured("count", "penstock_engine_restarts_total")
    num_restarts: float = measured("gauge", "penstock_engine_restarts_total")

    num_answers: float = measured(_answers(lambda _, status: True))
    """HTTP answers of the window but for those to watchers; then those of some statuses."""
    num_server_faults: float = measured(_answers(lambda _, status: status >= 500 and status != 503))
    num_locked_out: float = measured(_answers(lambda _, status: status in (401, 403)))
    num_bad_requests: float = measured(
        _answers(lambda _, status: 400 <= status < 500 and status not in (401, 403, 429))
    )

    ttft_p50_s: float = measured("quantile", 0.5, TTFT)
    ttft_p95_s: float = measured("quantile", 0.95, TTFT)
    ttft_p99_s: float = measured("quantile", 0.99, TTFT)
    itl_mean_s: float = measured("mean", *ITL)
    itl_p50_s: float = measured("quantile", 0.5, *ITL)
    itl_p99_s: float = measured("quantile", 0.99, *ITL)
    queue_mean_s: float = measured("mean", "vllm:request_queue_time_seconds")
    queue_p95_s: float = measured("quantile", 0.95, "vllm:request_queue_time_seconds")
    prefill_mean_s: float = measured("mean", "vllm:request_prefill_time_seconds")
    prompt_mean_tokens: float = measured("ratio", PROMPT_TOKENS, f"{TTFT}_count")
    hit_fraction: float = measured("ratio", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    """Share of prompt tokens that the prefix cache gave."""
    drafts_per_s: float = measured("rate", DRAFTS)
    accepted_fraction: float = measured("ratio", "vllm:spec_decode_num_accepted_tokens_total", DRAFTS)
    """Of the drafted tokens."""
    stolen_fraction: float = of_machine(lambda change: _of_processors(change, "stolen"))
    """Of the machine's processors, what a hypervisor gave to others; then what other programs used."""
    others_fraction: float = of_machine(lambda change: _of_processors(change, "other"))
    waited_per_s: float = of_machine(_waited_per_s)
    """Seconds that its threads waited for a processor, all together; others' share where the system counts no waits."""
    throttled_fraction: float = of_machine(
        "ratio", "penstock_host_throttled_periods_total", "penstock_host_periods_total"
    )
    """Of the periods in which a container's processor time is counted, those in which it ran out."""
    swapped_per_s: float = of_machine("rate", "penstock_host_swapped_pages_total")
    """Pages moved to or from swap."""
    slow_governor: float = of_machine("gauge", "penstock_host_slow_governor")
    """Share of the processors that save power."""
    remote_fraction: float = of_machine(_remote_fraction)
    """Of memory pages given, those on another node than the processor's."""
    gpu_clock_fraction: float = of_machine(
        lambda change: share(
            change.smallest("penstock_gpu_clock_hertz"), change.largest("penstock_gpu_max_clock_hertz")
        )
    )
    """Of the highest clock, what the slowest GPU runs at."""
    gpu_power_limited: float = of_machine("largest", "penstock_gpu_limited_by_power")
    gpu_thermal_limited: float = of_machine("largest", "penstock_gpu_limited_by_thermal")
    gpu_ecc_errors: float = of_machine("gauge", "penstock_gpu_ecc_errors_total")
    gpu_xid_errors: float = of_machine("gauge", "penstock_gpu_xid_errors_total")
    gpu_pcie_fraction: float = of_machine(
        lambda change: share(change.smallest("penstock_gpu_pcie_width"), change.largest("penstock_gpu_max_pcie_width"))
    )
    """Of the lanes to the host, those in use."""
    gpu_other_bytes: float = of_machine("gauge", "penstock_gpu_other_bytes")
    max_batch_tokens: float = of_machine("largest", "penstock_max_batch_tokens")
    weight_bits: float = of_machine(lambda change: share(8.0 * change.gauge(WEIGHTS), change.gauge(PARAMETERS)))
    """Of a parameter that a token is multiplied with, in memory."""
    energy_per_token_j: float = of_machine(lambda change: share(_joules(change), change.count(TOKENS)))
    energy_per_request_j: float = of_machine(lambda change: share(_joules(change), change.count(ENDED)))
    dollars_per_request: float = of_machine("ratio", "penstock_cost_dollars_total", ENDED)
    mfu: float = of_machine(lambda change: share(_flops(change), change.largest("penstock_machine_flops")))
    """Operations a second over what the machine was measured to compute; then bytes over what it reads."""
    mbu: float = of_machine(
        lambda change: share(_bytes_read(change), change.largest("penstock_machine_bytes_per_second"))
    )
    floor_s: float = math.nan
    """What a mean step takes at the hardware's limit, where the hardware is known."""

    step_sequences: float = measured("mean", "penstock_step_sequences")
    """Sequences that a mean step gave tokens to."""
    good_fraction: float = measured("ratio", "penstock_good_requests_total", "vllm:e2e_request_latency_seconds_count")
    """Share of the requests that ended which met the chat SLO."""
    kv_waste_fraction: float = measured("largest", "penstock_kv_waste_fraction")
    """Share of held KV positions that hold no token."""
    dollars_per_1k: float = of_machine("gauge", "penstock_dollars_per_1k_tokens")
    """Of 1,000 generated tokens, since the server's start."""

    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Signs that the page has no metrics for, with the names it lacks."""

    @property
    def is_idle(self) -> bool:
        """It computed nothing, so there was nothing to judge."""
        return self.num_running == 0.0 == self.prompt_tokens_per_s == self.output_tokens_per_s


def page_signs(before: Page, after: Page, window_s: float) -> Signs:
    """What two pages of metrics tell alone."""
    values: dict[str, float] = {}
    missing: dict[str, tuple[str, ...]] = {}
    for sign, measure in measures_of(Signs):
        change = Change(before, after, window_s)
        values[sign.name] = measure(change)
        if change.absent and not sign.metadata["of_machine"]:
            missing[sign.name] = tuple(sorted(change.absent))
    return Signs(window_s=window_s, missing=missing, **values)


def signs_of(before: Look, after: Look, window_s: float) -> Signs:
    signs = page_signs(before.page, after.page, window_s)
    ready_status = after.statuses.get("/readyz", math.nan)
    has_readyz = ready_status != 404
    health = [look.seconds["/health"] for look in (before, after) if "/health" in look.seconds]
    return replace(
        signs,
        metrics_status=after.statuses.get("/metrics", REFUSED),
        health_status=after.statuses.get("/health", REFUSED),
        ready_status=ready_status if has_readyz else math.nan,
        health_s=min(health) if len(health) == 2 else math.nan,
        missing=signs.missing if has_readyz else {**signs.missing, "ready_status": ("/readyz",)},
    )
