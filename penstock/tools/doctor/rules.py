"""What can be wrong with a server that runs: how each fault of `rules.json` shows in its vital signs.

Remedies there name flags of `penstock serve`, or of `penstock doctor` itself.
"""

from collections.abc import Mapping

from penstock.amounts import format_bytes
from penstock.tools.doctor.finding import known_faults
from penstock.tools.doctor.rule import Rule, Trigger
from penstock.tools.doctor.signs import REFUSED, SILENT, UNINTELLIGIBLE, UNREACHABLE

FEW = 3.0
"""Fewer cases than this in a window are chance."""
LATE_S = 0.25
"""A loop that turns answers /health in a few milliseconds."""
READING_S = 0.2
"""Seconds a token at which an answer comes slower than it is read."""
CHAT_S = 0.05
"""Seconds a token that a chat is usually held to."""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:,.2g} ms"


TRIGGERS: Mapping[str, Trigger] = {
    # How its questions were met, before anything else can be judged
    "unreachable": Trigger(
        lambda signs: signs.metrics_status == UNREACHABLE,
        lambda signs: "its name is not known, its network cannot be reached, or no connection came about in time",
    ),
    "refused": Trigger(
        lambda signs: signs.metrics_status == REFUSED,
        lambda signs: "its machine refused the connection",
    ),
    "silent": Trigger(
        lambda signs: signs.metrics_status == SILENT,
        lambda signs: "connected, asked for /metrics, and no answer came in time",
    ),
    "unintelligible": Trigger(
        lambda signs: signs.metrics_status == UNINTELLIGIBLE,
        lambda signs: "the connection broke off, or what came was no HTTP",
    ),
    "locked": Trigger(
        lambda signs: signs.metrics_status in (401.0, 403.0),
        lambda signs: f"/metrics answers {signs.metrics_status:.0f}",
    ),
    "no-metrics": Trigger(
        lambda signs: signs.metrics_status >= 300.0 and signs.metrics_status not in (401.0, 403.0),
        lambda signs: f"/metrics answers {signs.metrics_status:.0f}",
    ),
    # What a machine can do to a server: causes of what others see
    "gpu-xid": Trigger(
        lambda signs: signs.gpu_xid_errors > 0,
        lambda signs: f"{signs.gpu_xid_errors:.0f} Xid events since the server began",
    ),
    "gpu-ecc": Trigger(
        lambda signs: signs.gpu_ecc_errors > 0,
        lambda signs: f"{signs.gpu_ecc_errors:.0f} since it was reset",
    ),
    "throttled": Trigger(
        lambda signs: signs.throttled_fraction > 0.05,
        lambda signs: f"in {100 * signs.throttled_fraction:.0f} % of periods it stood still",
    ),
    "stolen": Trigger(
        lambda signs: signs.stolen_fraction > 0.05,
        lambda signs: f"{100 * signs.stolen_fraction:.0f} % of processor time was stolen",
    ),
    "swapping": Trigger(
        lambda signs: signs.swapped_per_s > 50,
        lambda signs: f"{signs.swapped_per_s:,.0f} pages a second",
    ),
    "gpu-hot": Trigger(
        lambda signs: signs.gpu_thermal_limited > 0,
        lambda signs: "its clocks are limited by temperature",
    ),
    "gpu-pcie": Trigger(
        lambda signs: signs.gpu_pcie_fraction < 0.75,
        lambda signs: f"{100 * signs.gpu_pcie_fraction:.0f} % of its PCIe width",
    ),
    "gpu-shared": Trigger(
        lambda signs: signs.gpu_other_bytes > 1 << 30,
        lambda signs: f"{format_bytes(int(signs.gpu_other_bytes))} belongs to others",
    ),
    "neighbours": Trigger(
        lambda signs: signs.others_fraction > 0.2 and signs.waited_per_s > 0.1,
        lambda signs: (
            f"{100 * signs.others_fraction:.0f} % of processor time went to them; threads of this server waited "
            f"{signs.waited_per_s:.2f} s for a processor in every second"
        ),
    ),
    "small-steps": Trigger(
        lambda signs: (
            signs.max_batch_tokens < 0.25 * signs.prompt_mean_tokens * (1.0 - signs.hit_fraction)
            and signs.prefill_mean_s > 0.2
        ),
        lambda signs: f"steps of {signs.max_batch_tokens:,.0f} tokens for prompts of {signs.prompt_mean_tokens:,.0f}",
    ),
    "remote-memory": Trigger(
        lambda signs: signs.remote_fraction > 0.2,
        lambda signs: f"{100 * signs.remote_fraction:.0f} % of new pages",
    ),
    "governor": Trigger(
        lambda signs: signs.slow_governor > 0.5,
        lambda signs: f"{100 * signs.slow_governor:.0f} % of them run under a saving governor",
    ),
    "wide-weights": Trigger(
        lambda signs: signs.weight_bits > 24.0 and signs.output_tokens_per_s > 0.0,
        lambda signs: f"{signs.weight_bits:.0f} bits a parameter: every step reads twice what bfloat16 would",
    ),
    "gpu-power": Trigger(
        lambda signs: signs.gpu_power_limited > 0,
        lambda signs: "its clocks are limited by power",
    ),
    # The engine, the queue, the cache, and those who ask
    "engine-down": Trigger(
        lambda signs: signs.health_status >= 500.0,
        lambda signs: f"/health answers {signs.health_status:.0f}: the model loads, restarts or is shut down",
    ),
    "not-ready": Trigger(
        lambda signs: signs.health_status == 200.0 and signs.ready_status >= 500.0,
        lambda signs: f"/health answers 200, /readyz {signs.ready_status:.0f}: no token within two seconds",
    ),
    "stuck": Trigger(
        lambda signs: signs.num_running_before > 0 and signs.num_running > 0 and signs.steps_per_s == 0,
        lambda signs: f"{signs.num_running:.0f} running, no step in {signs.window_s:.1f} s",
    ),
    "server-restarted": Trigger(
        lambda signs: signs.has_restarted == 1.0,
        lambda signs: f"counters fell within {signs.window_s:.1f} s",
    ),
    "engine-restarting": Trigger(
        lambda signs: signs.num_new_restarts > 0,
        lambda signs: (
            f"{signs.num_new_restarts:.0f} new engines in {signs.window_s:.1f} s, "
            f"{signs.num_restarts:.0f} since the server began"
        ),
    ),
    "requests-fail": Trigger(
        lambda signs: signs.num_errors > 0.01 * signs.num_ended,
        lambda signs: f"{signs.num_errors:.0f} of {signs.num_ended:.0f} that ended",
    ),
    "server-faults": Trigger(
        lambda signs: signs.num_server_faults > 0,
        lambda signs: f"{signs.num_server_faults:.0f} of {signs.num_answers:.0f} answers are 5xx other than 503",
    ),
    "refusing": Trigger(
        lambda signs: signs.refused_per_s > 0,
        lambda signs: f"{signs.refused_per_s:,.1f} refused and {signs.started_per_s:,.1f} begun a second",
    ),
    "kv-full": Trigger(
        lambda signs: signs.num_waiting_before > 0 and signs.num_waiting > 0 and signs.kv_usage_fraction >= 0.9,
        lambda signs: (
            f"{100 * signs.kv_usage_fraction:.0f} % of {signs.num_kv_tokens:,.0f} tokens in use, "
            f"{signs.num_waiting:,.0f} wait"
        ),
    ),
    "preempting": Trigger(
        lambda signs: signs.preemptions_per_s > 0.05 * signs.ended_per_s,
        lambda signs: (
            f"{signs.preemptions_per_s:,.2f} a second beside {signs.ended_per_s:,.2f} requests ended; "
            f"KV cache {100 * signs.kv_usage_fraction:.0f} % full"
        ),
    ),
    "sequence-limit": Trigger(
        lambda signs: signs.num_waiting_before >= FEW and signs.num_waiting >= FEW and signs.kv_usage_fraction < 0.7,
        lambda signs: (
            f"{signs.num_waiting:,.0f} wait beside {signs.num_running:,.0f} running; "
            f"KV cache {100 * signs.kv_usage_fraction:.0f} % full"
        ),
    ),
    "queue-grows": Trigger(
        lambda signs: signs.num_waiting - signs.num_waiting_before >= FEW and signs.num_waiting > signs.started_per_s,
        lambda signs: (
            f"the queue grew from {signs.num_waiting_before:,.0f} to {signs.num_waiting:,.0f} in "
            f"{signs.window_s:.1f} s while {signs.started_per_s:,.1f} a second were begun"
        ),
    ),
    "queue-long": Trigger(
        lambda signs: signs.queue_p95_s > 1.0,
        lambda signs: f"one in twenty waits over {signs.queue_p95_s:.1f} s",
    ),
    "gateway-late": Trigger(
        lambda signs: signs.health_s > LATE_S,
        lambda signs: f"/health took {_ms(signs.health_s)} both times",
    ),
    "prefill-stalls": Trigger(
        lambda signs: (
            signs.itl_p99_s > READING_S and signs.itl_p99_s > 8 * signs.itl_p50_s and signs.prompt_tokens_per_s > 0
        ),
        lambda signs: (
            f"between tokens {_ms(signs.itl_p50_s)} at the median, {_ms(signs.itl_p99_s)} one in a "
            f"hundred times; {signs.prompt_tokens_per_s:,.0f} prompt tokens a second"
        ),
    ),
    "below-roofline": Trigger(
        lambda signs: signs.itl_mean_s > 3 * signs.floor_s,
        lambda signs: (
            f"{_ms(signs.itl_mean_s)} between tokens, {signs.itl_mean_s / signs.floor_s:,.1f} times "
            f"what the roofline says ({_ms(signs.floor_s)})"
        ),
    ),
    "at-the-limit": Trigger(
        lambda signs: signs.itl_mean_s > CHAT_S and signs.itl_mean_s <= 1.5 * signs.floor_s,
        lambda signs: f"{_ms(signs.itl_mean_s)} between tokens, the roofline says {_ms(signs.floor_s)}",
    ),
    "slow-tokens": Trigger(
        lambda signs: signs.itl_p50_s > READING_S,
        lambda signs: f"{_ms(signs.itl_p50_s)} between tokens at the median, {signs.num_running:,.0f} running",
    ),
    "slow-prompts": Trigger(
        lambda signs: signs.prefill_mean_s > 2.0,
        lambda signs: f"{signs.prefill_mean_s:.1f} s for {signs.prompt_mean_tokens:,.0f} tokens in the mean",
    ),
    "cache-misses": Trigger(
        lambda signs: signs.hit_fraction < 0.05 and signs.prompt_mean_tokens >= 256 and signs.prefill_mean_s > 0.2,
        lambda signs: (
            f"{100 * signs.hit_fraction:.1f} % of prompt tokens were cached; prompts of "
            f"{signs.prompt_mean_tokens:,.0f} tokens take {signs.prefill_mean_s:.2f} s"
        ),
    ),
    "clients-leave": Trigger(
        lambda signs: signs.num_aborts >= FEW and signs.num_aborts > 0.2 * signs.num_ended,
        lambda signs: f"{signs.num_aborts:.0f} of {signs.num_ended:.0f} that ended were given up",
    ),
    "slow-readers": Trigger(
        lambda signs: (
            signs.num_unread_before >= FEW and signs.num_unread >= FEW and signs.num_unread > 0.25 * signs.num_calls
        ),
        lambda signs: f"{signs.num_unread:.0f} of {signs.num_calls:.0f} open calls have nothing left to compute",
    ),
    "locked-out": Trigger(
        lambda signs: signs.num_locked_out >= FEW and signs.num_locked_out > 0.05 * signs.num_answers,
        lambda signs: f"{signs.num_locked_out:.0f} of {signs.num_answers:.0f} answers are 401 or 403",
    ),
    "bad-requests": Trigger(
        lambda signs: signs.num_bad_requests >= FEW and signs.num_bad_requests > 0.2 * signs.num_answers,
        lambda signs: f"{signs.num_bad_requests:.0f} of {signs.num_answers:.0f} answers are 4xx",
    ),
    "engine-restarted": Trigger(
        lambda signs: signs.num_restarts > 0 and signs.num_new_restarts == 0,
        lambda signs: f"{signs.num_restarts:.0f} engines since the first, none in the last {signs.window_s:.1f} s",
    ),
}
"""Every rule can be reached, and none speaks of a healthy server."""

RULES = tuple(Rule(**fault, **TRIGGERS[fault["id"]]._asdict()) for fault in known_faults("server"))
