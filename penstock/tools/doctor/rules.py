"""What can be wrong with a server that runs: how each fault of `rules.json` shows in its vital signs.

Remedies there name flags of `penstock serve`, or of `penstock doctor` itself.
"""

from collections.abc import Mapping

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


TRIGGERS: Mapping[str, Trigger] = {
    # How its questions were met, before anything else can be judged
    "unreachable": Trigger(
        lambda signs: signs.metrics_status == UNREACHABLE,
        "its name is not known, its network cannot be reached, or no connection came about in time",
    ),
    "refused": Trigger(lambda signs: signs.metrics_status == REFUSED, "its machine refused the connection"),
    "silent": Trigger(
        lambda signs: signs.metrics_status == SILENT, "connected, asked for /metrics, and no answer came in time"
    ),
    "unintelligible": Trigger(
        lambda signs: signs.metrics_status == UNINTELLIGIBLE, "the connection broke off, or what came was no HTTP"
    ),
    "locked": Trigger(lambda signs: signs.metrics_status in (401.0, 403.0), "/metrics answers {metrics_status:.0f}"),
    "no-metrics": Trigger(
        lambda signs: signs.metrics_status >= 300.0 and signs.metrics_status not in (401.0, 403.0),
        "/metrics answers {metrics_status:.0f}",
    ),
    # What a machine can do to a server: causes of what others see
    "gpu-xid": Trigger(
        lambda signs: signs.gpu_xid_errors > 0, "{gpu_xid_errors:.0f} Xid events since the server began"
    ),
    "gpu-ecc": Trigger(lambda signs: signs.gpu_ecc_errors > 0, "{gpu_ecc_errors:.0f} since it was reset"),
    "throttled": Trigger(
        lambda signs: signs.throttled_fraction > 0.05, "in {throttled_fraction:%} of periods it stood still"
    ),
    "stolen": Trigger(lambda signs: signs.stolen_fraction > 0.05, "{stolen_fraction:%} of processor time was stolen"),
    "swapping": Trigger(lambda signs: signs.swapped_per_s > 50, "{swapped_per_s:,.0f} pages a second"),
    "gpu-hot": Trigger(lambda signs: signs.gpu_thermal_limited > 0, "its clocks are limited by temperature"),
    "gpu-pcie": Trigger(lambda signs: signs.gpu_pcie_fraction < 0.75, "{gpu_pcie_fraction:%} of its PCIe width"),
    "gpu-shared": Trigger(lambda signs: signs.gpu_other_bytes > 1 << 30, "{gpu_other_bytes:bytes} belongs to others"),
    "neighbours": Trigger(
        lambda signs: signs.others_fraction > 0.2 and signs.waited_per_s > 0.1,
        "{others_fraction:%} of processor time went to them; threads of this server waited "
        "{waited_per_s:.2f} s for a processor in every second",
    ),
    "small-steps": Trigger(
        lambda signs: (
            signs.max_batch_tokens < 0.25 * signs.prompt_mean_tokens * (1.0 - signs.hit_fraction)
            and signs.prefill_mean_s > 0.2
        ),
        "steps of {max_batch_tokens:,.0f} tokens for prompts of {prompt_mean_tokens:,.0f}",
    ),
    "remote-memory": Trigger(lambda signs: signs.remote_fraction > 0.2, "{remote_fraction:%} of new pages"),
    "governor": Trigger(
        lambda signs: signs.slow_governor > 0.5, "{slow_governor:%} of them run under a saving governor"
    ),
    "wide-weights": Trigger(
        lambda signs: signs.weight_bits > 24.0 and signs.output_tokens_per_s > 0.0,
        "{weight_bits:.0f} bits a parameter: every step reads twice what bfloat16 would",
    ),
    "gpu-power": Trigger(lambda signs: signs.gpu_power_limited > 0, "its clocks are limited by power"),
    # The engine, the queue, the cache, and those who ask
    "engine-down": Trigger(
        lambda signs: signs.health_status >= 500.0,
        "/health answers {health_status:.0f}: the model loads, restarts or is shut down",
    ),
    "not-ready": Trigger(
        lambda signs: signs.health_status == 200.0 and signs.ready_status >= 500.0,
        "/health answers 200, /readyz {ready_status:.0f}: no token within two seconds",
    ),
    "stuck": Trigger(
        lambda signs: signs.num_running_before > 0 and signs.num_running > 0 and signs.steps_per_s == 0,
        "{num_running:.0f} running, no step in {window_s:.1f} s",
    ),
    "server-restarted": Trigger(lambda signs: signs.has_restarted == 1.0, "counters fell within {window_s:.1f} s"),
    "engine-restarting": Trigger(
        lambda signs: signs.num_new_restarts > 0,
        "{num_new_restarts:.0f} new engines in {window_s:.1f} s, {num_restarts:.0f} since the server began",
    ),
    "requests-fail": Trigger(
        lambda signs: signs.num_errors > 0.01 * signs.num_ended, "{num_errors:.0f} of {num_ended:.0f} that ended"
    ),
    "server-faults": Trigger(
        lambda signs: signs.num_server_faults > 0,
        "{num_server_faults:.0f} of {num_answers:.0f} answers are 5xx other than 503",
    ),
    "refusing": Trigger(
        lambda signs: signs.refused_per_s > 0, "{refused_per_s:,.1f} refused and {started_per_s:,.1f} begun a second"
    ),
    "kv-full": Trigger(
        lambda signs: signs.num_waiting_before > 0 and signs.num_waiting > 0 and signs.kv_usage_fraction >= 0.9,
        "{kv_usage_fraction:%} of {num_kv_tokens:,.0f} tokens in use, {num_waiting:,.0f} wait",
    ),
    "preempting": Trigger(
        lambda signs: signs.preemptions_per_s > 0.05 * signs.ended_per_s,
        "{preemptions_per_s:,.2f} a second beside {ended_per_s:,.2f} requests ended; "
        "KV cache {kv_usage_fraction:%} full",
    ),
    "sequence-limit": Trigger(
        lambda signs: signs.num_waiting_before >= FEW and signs.num_waiting >= FEW and signs.kv_usage_fraction < 0.7,
        "{num_waiting:,.0f} wait beside {num_running:,.0f} running; KV cache {kv_usage_fraction:%} full",
    ),
    "queue-grows": Trigger(
        lambda signs: signs.num_waiting - signs.num_waiting_before >= FEW and signs.num_waiting > signs.started_per_s,
        "the queue grew from {num_waiting_before:,.0f} to {num_waiting:,.0f} in "
        "{window_s:.1f} s while {started_per_s:,.1f} a second were begun",
    ),
    "queue-long": Trigger(lambda signs: signs.queue_p95_s > 1.0, "one in twenty waits over {queue_p95_s:.1f} s"),
    "gateway-late": Trigger(lambda signs: signs.health_s > LATE_S, "/health took {health_s:ms} both times"),
    "prefill-stalls": Trigger(
        lambda signs: (
            signs.itl_p99_s > READING_S and signs.itl_p99_s > 8 * signs.itl_p50_s and signs.prompt_tokens_per_s > 0
        ),
        "between tokens {itl_p50_s:ms} at the median, {itl_p99_s:ms} one in a "
        "hundred times; {prompt_tokens_per_s:,.0f} prompt tokens a second",
    ),
    "below-roofline": Trigger(
        lambda signs: signs.itl_mean_s > 3 * signs.floor_s,
        "{itl_mean_s:ms} between tokens, {itl_mean_s/floor_s:,.1f} times what the roofline says ({floor_s:ms})",
    ),
    "at-the-limit": Trigger(
        lambda signs: signs.itl_mean_s > CHAT_S and signs.itl_mean_s <= 1.5 * signs.floor_s,
        "{itl_mean_s:ms} between tokens, the roofline says {floor_s:ms}",
    ),
    "slow-tokens": Trigger(
        lambda signs: signs.itl_p50_s > READING_S,
        "{itl_p50_s:ms} between tokens at the median, {num_running:,.0f} running",
    ),
    "slow-prompts": Trigger(
        lambda signs: signs.prefill_mean_s > 2.0,
        "{prefill_mean_s:.1f} s for {prompt_mean_tokens:,.0f} tokens in the mean",
    ),
    "cache-misses": Trigger(
        lambda signs: signs.hit_fraction < 0.05 and signs.prompt_mean_tokens >= 256 and signs.prefill_mean_s > 0.2,
        "{hit_fraction:.1f%} of prompt tokens were cached; prompts of "
        "{prompt_mean_tokens:,.0f} tokens take {prefill_mean_s:.2f} s",
    ),
    "clients-leave": Trigger(
        lambda signs: signs.num_aborts >= FEW and signs.num_aborts > 0.2 * signs.num_ended,
        "{num_aborts:.0f} of {num_ended:.0f} that ended were given up",
    ),
    "slow-readers": Trigger(
        lambda signs: (
            signs.num_unread_before >= FEW and signs.num_unread >= FEW and signs.num_unread > 0.25 * signs.num_calls
        ),
        "{num_unread:.0f} of {num_calls:.0f} open calls have nothing left to compute",
    ),
    "locked-out": Trigger(
        lambda signs: signs.num_locked_out >= FEW and signs.num_locked_out > 0.05 * signs.num_answers,
        "{num_locked_out:.0f} of {num_answers:.0f} answers are 401 or 403",
    ),
    "bad-requests": Trigger(
        lambda signs: signs.num_bad_requests >= FEW and signs.num_bad_requests > 0.2 * signs.num_answers,
        "{num_bad_requests:.0f} of {num_answers:.0f} answers are 4xx",
    ),
    "engine-restarted": Trigger(
        lambda signs: signs.num_restarts > 0 and signs.num_new_restarts == 0,
        "{num_restarts:.0f} engines since the first, none in the last {window_s:.1f} s",
    ),
}
"""Every rule can be reached, and none speaks of a healthy server."""

RULES = tuple(Rule(**fault, **TRIGGERS[fault["id"]]._asdict()) for fault in known_faults("server"))
