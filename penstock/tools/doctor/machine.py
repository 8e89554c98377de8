"""Signs of the machine under a server, out of two of its pages: what it lost to others, how far it is used, what it took.

Servers of other makers say nothing of it; then every sign is NaN, and no rule misses it.
"""

import math
from collections.abc import Callable

from penstock.metrics.page import Page
from penstock.tools.doctor.page import Change

HOST = "penstock_host_processor_seconds_total"
ENERGY = ("penstock_gpu_energy_joules_total", "penstock_host_energy_joules_total")


def machine_signs(before: Page, after: Page, window_s: float) -> dict[str, float]:
    """By name of the sign."""

    change = Change(before, after, window_s)

    def gone(name: str, **labels: str) -> float:
        return change.count(name, lambda own: labels.items() <= own.items())

    def now(name: str, pick: Callable[[list[float]], float] = sum) -> float:
        values = [sample.value for sample in after.get(name, ())]
        return pick(values) if values else math.nan

    whole_s, waited_s = gone(HOST), gone("penstock_host_waiting_seconds_total")
    others = _share(gone(HOST, use="other"), whole_s)
    numa = gone("penstock_host_numa_pages_total")
    joules = math.fsum(value for name in ENERGY if not math.isnan(value := gone(name)))
    tokens, ended = gone("vllm:generation_tokens_total"), gone("vllm:request_success_total")
    parameters, weights = now("penstock_active_parameters"), now("penstock_weight_bytes")
    computed = tokens + gone("vllm:prompt_tokens_total") - gone("vllm:prompt_tokens_cached_total")
    read = gone("penstock_engine_steps_total") * (
        weights + now("vllm:kv_cache_usage_perc", max) * now("penstock_kv_bytes")
    )
    return {
        "stolen_fraction": _share(gone(HOST, use="stolen"), whole_s),
        "others_fraction": others,
        "waited_per_s": others if math.isnan(waited_s) else waited_s / window_s,
        "throttled_fraction": _share(
            gone("penstock_host_throttled_periods_total"), gone("penstock_host_periods_total")
        ),
        "swapped_per_s": _share(gone("penstock_host_swapped_pages_total"), window_s),
        "slow_governor": now("penstock_host_slow_governor"),
        "remote_fraction": _share(gone("penstock_host_numa_pages_total", where="other"), numa)
        if numa > 1000
        else math.nan,
        "gpu_clock_fraction": _share(now("penstock_gpu_clock_hertz", min), now("penstock_gpu_max_clock_hertz", max)),
        "gpu_power_limited": now("penstock_gpu_limited_by_power", max),
        "gpu_thermal_limited": now("penstock_gpu_limited_by_thermal", max),
        "gpu_ecc_errors": now("penstock_gpu_ecc_errors_total"),
        "gpu_xid_errors": now("penstock_gpu_xid_errors_total"),
        "gpu_pcie_fraction": _share(now("penstock_gpu_pcie_width", min), now("penstock_gpu_max_pcie_width", max)),
        "gpu_other_bytes": now("penstock_gpu_other_bytes"),
        "max_batch_tokens": now("penstock_max_batch_tokens", max),
        "weight_bits": _share(8.0 * weights, parameters),
        "energy_per_token_j": _share(joules, tokens) if joules else math.nan,
        "energy_per_request_j": _share(joules, ended) if joules else math.nan,
        "dollars_per_request": _share(gone("penstock_cost_dollars_total"), ended),
        "mfu": _share(2.0 * parameters * computed / window_s, now("penstock_machine_flops", max)),
        "mbu": _share(read / window_s, now("penstock_machine_bytes_per_second", max)),
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else math.nan
