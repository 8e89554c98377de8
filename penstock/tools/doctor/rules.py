"""What can be wrong with a server that runs: a table of rules over its vital signs.

Remedies name flags of `penstock serve`, or of `penstock doctor` itself.
"""

from penstock.tools.doctor.access import ACCESS
from penstock.tools.doctor.finding import ServiceLayer, Verdict
from penstock.tools.doctor.host import HOST_RULES
from penstock.tools.doctor.rule import Rule

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


RULES: tuple[Rule, ...] = (
    *ACCESS,
    *HOST_RULES,
    Rule(
        id="engine-down",
        layer=ServiceLayer.L3,
        verdict=Verdict.FAULT,
        weight=94,
        symptom="the engine does not answer",
        condition=lambda signs: signs.health_status >= 500.0,
        evidence=lambda signs: f"/health answers {signs.health_status:.0f}: the model loads, restarts or is shut down",
        remedy="read the last lines the server printed; if steps are merely long raise hang-s, "
        "if memory ran out lower --memory-fraction",
    ),
    Rule(
        id="not-ready",
        layer=ServiceLayer.L3,
        verdict=Verdict.FAULT,
        weight=92,
        symptom="the engine is alive but no token comes through",
        condition=lambda signs: signs.health_status == 200.0 and signs.ready_status >= 500.0,
        evidence=lambda signs: f"/health answers 200, /readyz {signs.ready_status:.0f}: no token within two seconds",
        remedy="if every step takes seconds lower --max-batch-tokens; else stop the server and read what it prints",
    ),
    Rule(
        id="stuck",
        layer=ServiceLayer.L3,
        verdict=Verdict.FAULT,
        weight=90,
        symptom="requests run but no step ends",
        condition=lambda signs: signs.num_running_before > 0 and signs.num_running > 0 and signs.steps_per_s == 0,
        evidence=lambda signs: f"{signs.num_running:.0f} running, no step in {signs.window_s:.1f} s",
        remedy="the engine is replaced after hang-s of silence; if prompts are long lower --max-batch-tokens",
    ),
    Rule(
        id="server-restarted",
        layer=ServiceLayer.L3,
        verdict=Verdict.FAULT,
        weight=88,
        symptom="the server was restarted during the measurement",
        condition=lambda signs: signs.has_restarted == 1.0,
        evidence=lambda signs: f"counters fell within {signs.window_s:.1f} s",
        remedy="see who ends it: its supervisor's log, or the kernel's for lack of memory (then lower --memory-fraction)",
    ),
    Rule(
        id="engine-restarting",
        layer=ServiceLayer.L3,
        verdict=Verdict.FAULT,
        weight=86,
        symptom="the engine dies and is replaced",
        condition=lambda signs: signs.num_new_restarts > 0,
        evidence=lambda signs: (
            f"{signs.num_new_restarts:.0f} new engines in {signs.window_s:.1f} s, "
            f"{signs.num_restarts:.0f} since the server began"
        ),
        remedy="read what the server printed before each; if steps are merely long raise hang-s, "
        "if memory ran out lower --memory-fraction",
    ),
    Rule(
        id="engine-restarted",
        layer=ServiceLayer.L3,
        verdict=Verdict.WARNING,
        weight=30,
        symptom="the engine was replaced earlier",
        condition=lambda signs: signs.num_restarts > 0 and signs.num_new_restarts == 0,
        evidence=lambda signs: (
            f"{signs.num_restarts:.0f} engines since the first, none in the last {signs.window_s:.1f} s"
        ),
        remedy="read what the server printed then; if steps are merely long raise hang-s",
    ),
    Rule(
        id="requests-fail",
        layer=ServiceLayer.L3,
        verdict=Verdict.FAULT,
        weight=84,
        symptom="requests end in errors",
        condition=lambda signs: signs.num_errors > 0.01 * signs.num_ended,
        evidence=lambda signs: f"{signs.num_errors:.0f} of {signs.num_ended:.0f} that ended",
        remedy="read what the server printed; with deadlines set by clients, serve with --order deadline",
    ),
    Rule(
        id="server-faults",
        layer=ServiceLayer.L5,
        verdict=Verdict.FAULT,
        weight=82,
        symptom="answers are server errors",
        condition=lambda signs: signs.num_server_faults > 0,
        evidence=lambda signs: (
            f"{signs.num_server_faults:.0f} of {signs.num_answers:.0f} answers are 5xx other than 503"
        ),
        remedy="find their x-request-id in what the server printed: the traceback stands under it",
    ),
    Rule(
        id="refusing",
        layer=ServiceLayer.L5,
        verdict=Verdict.FAULT,
        weight=80,
        symptom="requests are refused for lack of room",
        condition=lambda signs: signs.refused_per_s > 0,
        evidence=lambda signs: f"{signs.refused_per_s:,.1f} refused and {signs.started_per_s:,.1f} begun a second",
        remedy="add a replica or slow the clients down by Retry-After; if waiting longer is better than being refused "
        "raise --max-waiting and max-waiting-tokens",
    ),
    Rule(
        id="queue-grows",
        layer=ServiceLayer.L4,
        verdict=Verdict.FAULT,
        weight=71,
        symptom="requests arrive faster than they are served",
        condition=lambda signs: (
            signs.num_waiting - signs.num_waiting_before >= FEW and signs.num_waiting > signs.started_per_s
        ),
        evidence=lambda signs: (
            f"the queue grew from {signs.num_waiting_before:,.0f} to {signs.num_waiting:,.0f} in "
            f"{signs.window_s:.1f} s while {signs.started_per_s:,.1f} a second were begun"
        ),
        remedy="add a replica, or a smaller or more quantized model (--weights fp8 on a GPU that has it); "
        "--max-waiting bounds how long the queue gets",
    ),
    Rule(
        id="kv-full",
        layer=ServiceLayer.L4,
        verdict=Verdict.WARNING,
        weight=76,
        symptom="the KV cache is full, so requests wait",
        condition=lambda signs: (
            signs.num_waiting_before > 0 and signs.num_waiting > 0 and signs.kv_usage_fraction >= 0.9
        ),
        evidence=lambda signs: (
            f"{100 * signs.kv_usage_fraction:.0f} % of {signs.num_kv_tokens:,.0f} tokens in use, "
            f"{signs.num_waiting:,.0f} wait"
        ),
        remedy="hold keys and values in 8 bits (--kv fp8), give the cache more (--num-blocks, --memory-fraction) or "
        "ask for shorter answers; --max-context bounds the longest",
    ),
    Rule(
        id="preempting",
        layer=ServiceLayer.L4,
        verdict=Verdict.WARNING,
        weight=74,
        symptom="sequences are preempted for lack of KV blocks and computed again",
        condition=lambda signs: signs.preemptions_per_s > 0.05 * signs.ended_per_s,
        evidence=lambda signs: (
            f"{signs.preemptions_per_s:,.2f} a second beside {signs.ended_per_s:,.2f} requests ended; "
            f"KV cache {100 * signs.kv_usage_fraction:.0f} % full"
        ),
        remedy="run fewer at once (--max-sequences), hold keys and values in 8 bits (--kv fp8), or give the cache more "
        "(--num-blocks, --memory-fraction)",
    ),
    Rule(
        id="sequence-limit",
        layer=ServiceLayer.L4,
        verdict=Verdict.WARNING,
        weight=72,
        symptom="requests wait although the KV cache has room",
        condition=lambda signs: (
            signs.num_waiting_before >= FEW and signs.num_waiting >= FEW and signs.kv_usage_fraction < 0.7
        ),
        evidence=lambda signs: (
            f"{signs.num_waiting:,.0f} wait beside {signs.num_running:,.0f} running; "
            f"KV cache {100 * signs.kv_usage_fraction:.0f} % full"
        ),
        remedy="if as many run as --max-sequences allows, raise it; if prompts are long raise --max-batch-tokens; "
        "keep to batching=continuous",
    ),
    Rule(
        id="queue-long",
        layer=ServiceLayer.L4,
        verdict=Verdict.WARNING,
        weight=70,
        symptom="requests wait long before they start",
        condition=lambda signs: signs.queue_p95_s > 1.0,
        evidence=lambda signs: f"one in twenty waits over {signs.queue_p95_s:.1f} s",
        remedy="add a replica; --order priority or --order fair lets some come first, --max-waiting refuses sooner",
    ),
    Rule(
        id="gateway-late",
        layer=ServiceLayer.L5,
        verdict=Verdict.WARNING,
        weight=60,
        symptom="the server's own loop is late",
        condition=lambda signs: signs.health_s > LATE_S,
        evidence=lambda signs: f"/health took {_ms(signs.health_s)} both times",
        remedy="run penstock doctor on that machine: its cores are taken, throttled, or the network is slow",
    ),
    Rule(
        id="prefill-stalls",
        layer=ServiceLayer.L4,
        verdict=Verdict.WARNING,
        weight=56,
        symptom="long prompts stall the streams of others",
        condition=lambda signs: (
            signs.itl_p99_s > READING_S and signs.itl_p99_s > 8 * signs.itl_p50_s and signs.prompt_tokens_per_s > 0
        ),
        evidence=lambda signs: (
            f"between tokens {_ms(signs.itl_p50_s)} at the median, {_ms(signs.itl_p99_s)} one in a "
            f"hundred times; {signs.prompt_tokens_per_s:,.0f} prompt tokens a second"
        ),
        remedy="lower --max-batch-tokens, so that long prompts are split over more steps",
    ),
    Rule(
        id="below-roofline",
        layer=ServiceLayer.L3,
        verdict=Verdict.WARNING,
        weight=54,
        symptom="steps take far longer than the hardware needs",
        condition=lambda signs: signs.itl_mean_s > 3 * signs.floor_s,
        evidence=lambda signs: (
            f"{_ms(signs.itl_mean_s)} between tokens, {signs.itl_mean_s / signs.floor_s:,.1f} times "
            f"what the roofline says ({_ms(signs.floor_s)})"
        ),
        remedy="run penstock doctor on that machine for drivers, native library and throttling; see that --device is the "
        "one you mean and that --dtype is not float32",
    ),
    Rule(
        id="at-the-limit",
        layer=ServiceLayer.L0,
        verdict=Verdict.WARNING,
        weight=52,
        symptom="tokens come slowly, and the hardware is at its limit",
        condition=lambda signs: signs.itl_mean_s > CHAT_S and signs.itl_mean_s <= 1.5 * signs.floor_s,
        evidence=lambda signs: f"{_ms(signs.itl_mean_s)} between tokens, the roofline says {_ms(signs.floor_s)}",
        remedy="read fewer bytes a step (--weights fp8, --kv fp8, a smaller model), run fewer at once (--max-sequences), "
        "or choose faster hardware",
    ),
    Rule(
        id="slow-tokens",
        layer=ServiceLayer.L3,
        verdict=Verdict.WARNING,
        weight=50,
        symptom="answers come slower than people read",
        condition=lambda signs: signs.itl_p50_s > READING_S,
        evidence=lambda signs: f"{_ms(signs.itl_p50_s)} between tokens at the median, {signs.num_running:,.0f} running",
        remedy="name the machine with --hardware to learn whether it is the limit; run fewer at once (--max-sequences), "
        "choose a smaller or more quantized model",
    ),
    Rule(
        id="slow-prompts",
        layer=ServiceLayer.L3,
        verdict=Verdict.WARNING,
        weight=48,
        symptom="prompts take long to compute",
        condition=lambda signs: signs.prefill_mean_s > 2.0,
        evidence=lambda signs: f"{signs.prefill_mean_s:.1f} s for {signs.prompt_mean_tokens:,.0f} tokens in the mean",
        remedy="shorten prompts or let them begin alike (--prefix-caching), raise --max-batch-tokens if few run at once, "
        "or compute on a GPU (--device cuda)",
    ),
    Rule(
        id="cache-misses",
        layer=ServiceLayer.L4,
        verdict=Verdict.WARNING,
        weight=46,
        symptom="long prompts find nothing in the prefix cache",
        condition=lambda signs: (
            signs.hit_fraction < 0.05 and signs.prompt_mean_tokens >= 256 and signs.prefill_mean_s > 0.2
        ),
        evidence=lambda signs: (
            f"{100 * signs.hit_fraction:.1f} % of prompt tokens were cached; prompts of "
            f"{signs.prompt_mean_tokens:,.0f} tokens take {signs.prefill_mean_s:.2f} s"
        ),
        remedy="put what prompts share first and what differs (dates, ids, questions) last; see that --no-prefix-caching "
        "is not set; if they do begin alike the cache is too small (--num-blocks, --kv fp8)",
    ),
    Rule(
        id="clients-leave",
        layer=ServiceLayer.L6,
        verdict=Verdict.WARNING,
        weight=44,
        symptom="clients give up before their answer ends",
        condition=lambda signs: signs.num_aborts >= FEW and signs.num_aborts > 0.2 * signs.num_ended,
        evidence=lambda signs: f"{signs.num_aborts:.0f} of {signs.num_ended:.0f} that ended were given up",
        remedy="compare the clients' time limits with the times below, and let them stream; if their readers stalled, "
        "stall-s is how long that is allowed",
    ),
    Rule(
        id="slow-readers",
        layer=ServiceLayer.L6,
        verdict=Verdict.WARNING,
        weight=42,
        symptom="answers are ready but clients do not read them",
        condition=lambda signs: (
            signs.num_unread_before >= FEW and signs.num_unread >= FEW and signs.num_unread > 0.25 * signs.num_calls
        ),
        evidence=lambda signs: (
            f"{signs.num_unread:.0f} of {signs.num_calls:.0f} open calls have nothing left to compute"
        ),
        remedy="see that clients and proxies read streams as they come; stall-s is how long one may stop reading",
    ),
    Rule(
        id="locked-out",
        layer=ServiceLayer.L6,
        verdict=Verdict.WARNING,
        weight=40,
        symptom="clients are rejected for their key, host or origin",
        condition=lambda signs: signs.num_locked_out >= FEW and signs.num_locked_out > 0.05 * signs.num_answers,
        evidence=lambda signs: f"{signs.num_locked_out:.0f} of {signs.num_answers:.0f} answers are 401 or 403",
        remedy="give clients a key the server knows (--api-key); after 403 allow their --allowed-host or allowed-origin",
    ),
    Rule(
        id="bad-requests",
        layer=ServiceLayer.L6,
        verdict=Verdict.WARNING,
        weight=38,
        symptom="clients send requests that cannot be served",
        condition=lambda signs: signs.num_bad_requests >= FEW and signs.num_bad_requests > 0.2 * signs.num_answers,
        evidence=lambda signs: f"{signs.num_bad_requests:.0f} of {signs.num_answers:.0f} answers are 4xx",
        remedy="read the message of such an answer, and /docs of the server; --max-context and max-body-mib bound sizes",
    ),
)
"""Every rule can be reached, and none speaks of a healthy server."""
