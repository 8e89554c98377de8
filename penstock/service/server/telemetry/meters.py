"""What the server counts, from the deltas everyone sees: the numbers behind /metrics, timings and the trace."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from penstock.log import num_lost_lines
from penstock.metrics.exposition import (
    COUNT_BUCKETS,
    DURATION_BUCKETS,
    GAP_BUCKETS,
    TTFT_BUCKETS,
    Buckets,
    Counter,
    Gauge,
    GaugeTable,
    Metric,
)
from penstock.metrics.step_model import OnlineStepModel
from penstock.metrics.timeline import Outcome, Timeline
from penstock.runtime.core.batch import Drafted, PrefixHit
from penstock.runtime.core.request import Request
from penstock.runtime.engine.client import EngineClient, Facts, GrammarCounts, GrammarTime, StepReport, TierCounts
from penstock.service.server.blocks import transfer_metrics
from penstock.service.server.calls.call import Call
from penstock.service.server.http.admission import Admission
from penstock.service.server.http.exchange import ServerExchange
from penstock.service.server.telemetry.record import TraceRecorder

RECORDED_BLOCK = 16
"""Tokens that a name of a recording stands for while no engine says how large its blocks are."""


BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TAKEN = ("weights", "workspace", "KV cache")
"""Rows of the memory table that are in use from the start on."""
CHAT_TTFT_S, CHAT_TPOT_S = 0.5, 0.05
"""What goodput is counted by, as the dashboard's badge is."""
FINISHED_REASON = {Outcome.STOP: "stop", Outcome.LENGTH: "length", Outcome.CANCELLED: "abort"}

GRAMMARS = (
    ("num_compiled", "penstock_grammars_compiled", "Requests whose grammar was compiled"),
    ("num_refused", "penstock_grammars_refused", "Requests whose grammar the engine could not use"),
    ("compile_s", "penstock_grammar_compile_seconds", "Seconds spent compiling grammars"),
    ("num_masks", "penstock_grammar_masks", "Masks made, one a token under a grammar"),
    ("mask_s", "penstock_grammar_mask_seconds", "Seconds spent making masks"),
    ("num_forced", "penstock_grammar_forced_tokens", "Tokens that a grammar left no choice about"),
)
"""Counted by the engine: field, name and meaning."""


@dataclass(slots=True, eq=False)
class Watch:
    """One request of a call in progress."""

    call: Call
    request: Request
    timeline: Timeline
    answer: list[int] = field(default_factory=list)
    """Tokens of the first choice, where they are recorded."""
    prefix: PrefixHit | None = None
    """What the prefix cache gave, once it was admitted."""
    grammar: GrammarTime | None = None
    """What its grammar took, once it has ended."""

    @property
    def admitted_s(self) -> float | None:
        return None if self.prefix is None else self.prefix.admitted_s


class CallObserver(Protocol):
    """Told of calls that run on connections, and of every step: the pages that show them."""

    def enter(self, call: Call, exchange: ServerExchange) -> None: ...

    def observe(self, step: StepReport) -> None:
        """Before whoever waits for its tokens."""

    def leave(self, call: Call, watches: Iterable[Watch], now: float) -> None: ...


class Meters:
    """Names that begin with `vllm:` are those existing dashboards and autoscalers look for; ours begin with `penstock_`."""

    def __init__(self, client: EngineClient, admission: Admission) -> None:
        self.last_token_s = -1e9
        self.recorder: TraceRecorder | None = None
        self.watch_prefix: Callable[[Request, int], None] | None = None
        """Told of every prompt that begins, and how much of it the cache gave."""
        self.observers: list[CallObserver] = []
        self._client = client
        self._admission = admission
        self._open: dict[int, Watch] = {}
        self._grammars = GrammarCounts()
        self.step_model = OnlineStepModel()
        self._prompts: dict[int, int] = {}
        """Tokens done of prompts that are partly computed."""
        self._was_busy, self._step_end_s = False, 0.0
        self.prompt_tokens = Counter("vllm:prompt_tokens", "Prompt tokens of requests that began")
        self.cached_tokens = Counter("vllm:prompt_tokens_cached", "Prompt tokens that the prefix cache gave")
        self.output_tokens = Counter("vllm:generation_tokens", "Tokens generated")
        self.ended = Counter("vllm:request_success", "Requests that ended, by how")
        self.cache_queries = Counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self.cache_hits = Counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self.tier_queries = Counter(
            "vllm:external_prefix_cache_queries", "Prompt tokens looked up in host memory and on the disk"
        )
        self.tier_hits = Counter("vllm:external_prefix_cache_hits", "Prompt tokens found there and used")
        self.tier_tokens = Counter("penstock_kv_tier_tokens", "Prompt tokens that each tier of the KV cache gave")
        self.tier_misses = Counter("penstock_kv_tier_misses", "Prompts of which tiers gave no more, by why")
        self.ttft = Buckets("vllm:time_to_first_token_seconds", "Seconds to the first token", TTFT_BUCKETS)
        self.gaps = Buckets("vllm:inter_token_latency_seconds", "Seconds between tokens", GAP_BUCKETS)
        self.tpot = Buckets(
            "vllm:request_time_per_output_token_seconds", "Mean seconds a token after the first", GAP_BUCKETS
        )
        self.e2e = Buckets("vllm:e2e_request_latency_seconds", "Seconds a request takes", DURATION_BUCKETS)
        self.queue = Buckets("vllm:request_queue_time_seconds", "Seconds a request waits", DURATION_BUCKETS)
        self.prefill = Buckets("vllm:request_prefill_time_seconds", "Seconds a prompt is computed", DURATION_BUCKETS)
        self.decode = Buckets("vllm:request_decode_time_seconds", "Seconds an answer is generated", DURATION_BUCKETS)
        self.prompt_sizes = Buckets("vllm:request_prompt_tokens", "Prompt tokens a request", COUNT_BUCKETS)
        self.output_sizes = Buckets("vllm:request_generation_tokens", "Generated tokens a request", COUNT_BUCKETS)
        self.steps = Counter("penstock_engine_steps", "Steps of the engine")
        self.batch_sizes = Buckets("penstock_step_sequences", "Sequences that a step gave tokens to", BATCH_BUCKETS)
        self.good = Counter("penstock_good_requests", "Requests that met the chat SLO (TTFT 500 ms, TPOT 50 ms)")
        self.draft_rounds = Counter("vllm:spec_decode_num_drafts", "Verifications of drafts of a sequence")
        self.draft_tokens = Counter("vllm:spec_decode_num_draft_tokens", "Drafts verified, by drafter")
        self.accepted_tokens = Counter("vllm:spec_decode_num_accepted_tokens", "Drafts accepted, by drafter")
        self.accepted_at = Counter("vllm:spec_decode_num_accepted_tokens_per_pos", "Drafts accepted, by position")

    # Calls come and go

    def enter(self, call: Call, exchange: ServerExchange | None = None) -> None:
        """`exchange` is of a call that runs on a connection."""
        for request in call.requests:
            timeline = Timeline(call.arrival_s, len(request.prompt), request.params.n)
            self._open[request.request_id] = Watch(call, request, timeline)
        if exchange is not None:
            for observer in self.observers:
                observer.enter(call, exchange)

    def leave(self, call: Call) -> None:
        """Requests that have not ended were given up by their client."""
        now = time.monotonic()
        for observer in self.observers:
            observer.leave(call, self.watches(call), now)
        for request in call.requests:
            watch = self._open.pop(request.request_id, None)
            if watch is not None and not watch.timeline.is_over:
                is_written = all(writer.finish_reason for writer in call.writers)
                self._end(watch, Outcome.STOP if is_written else Outcome.CANCELLED, now)

    def observe(self, step: StepReport) -> None:
        """Take in a step before its readers do."""
        now = time.monotonic()
        self.steps.add()
        self._learn_step(step)
        if step.grammars is not None:
            self._grammars = step.grammars
        num_tokens = 0
        watches = self._open
        for time_ in step.matched:
            if time_.request_id in watches:
                watches[time_.request_id].grammar = time_
        for delta in step.deltas:
            watch = watches.get(delta.request_id)
            if watch is None:
                continue
            num_tokens += len(delta.token_ids)
            if self.recorder is not None and delta.choice == 0:
                watch.answer += delta.token_ids
            for drafts in delta.drafts:
                self._count_drafts(drafts)
            timeline = watch.timeline
            gap = timeline.observe(delta, now)
            if gap is not None:
                if gap > 0.0:
                    self.gaps.add(gap)
            elif delta.prefix is not None and delta.choice == 0:
                self._begin(watch, delta.prefix, now)
            if delta.finish is not None and timeline.is_over:
                self._end(watch, timeline.outcome or Outcome.ERROR, now)
                del watches[delta.request_id]
                watch.call.ended.append(watch)
        if num_tokens:
            self.batch_sizes.add(len(step.deltas))
            self.last_token_s = now
            self.output_tokens.add(num_tokens)
        for observer in self.observers:
            observer.observe(step)

    def _learn_step(self, step: StepReport) -> None:
        """A step that followed another at once took from that one's end to its own. What is computed beside it of prompts is
        what of them is done by now."""
        done = {request_id: num_done for request_id, num_done, _ in step.prompts}
        begun = [delta for delta in step.deltas if delta.prefix is not None and delta.choice == 0]
        num_prompt = sum(num_done - self._prompts.get(name, 0) for name, num_done in done.items())
        for delta in begun:
            if (watch := self._open.get(delta.request_id)) is not None:
                left = watch.timeline.num_prompt - delta.prefix.num_tokens if delta.prefix else 0
                num_prompt += max(left - self._prompts.get(delta.request_id, 0), 0)
        self._prompts = done
        facts, load = self._client.facts, step.load
        num_held = 0.0 if facts is None else load.kv_usage_fraction * facts.num_cached_tokens
        if self._was_busy and step.deltas:
            num_decoding = len(step.deltas) - len(begun)
            self.step_model.take(step.time_s - self._step_end_s, num_decoding, num_prompt, num_held)
        self._was_busy, self._step_end_s = load.num_running > 0, step.time_s

    def _count_drafts(self, drafts: Drafted) -> None:
        source = (("source", drafts.source),)
        self.draft_rounds.add(1, source)
        self.draft_tokens.add(drafts.num_checked, source)
        self.accepted_tokens.add(drafts.num_accepted, source)
        for place in range(drafts.num_accepted):
            self.accepted_at.add(1, (("position", str(place)),))

    def _begin(self, watch: Watch, prefix: PrefixHit, now: float) -> None:
        timeline = watch.timeline
        watch.prefix = prefix
        self.prompt_tokens.add(timeline.num_prompt)
        self.cached_tokens.add(prefix.num_reused)
        self.cache_queries.add(timeline.num_prompt)
        self.cache_hits.add(prefix.num_reused)
        if self._client.tiers is not None:
            self._count_tiers(timeline.num_prompt, prefix)
        if self.watch_prefix is not None:
            self.watch_prefix(watch.request, prefix.num_reused)
        if watch.request.is_batch:
            return  # how long it takes is nobody's concern
        self._admission.drain.add(now)
        self.queue.add(max(prefix.admitted_s - timeline.arrival_s, 0.0))
        if timeline.first_token_s is not None:
            self.ttft.add(timeline.first_token_s - timeline.arrival_s)
            self.prefill.add(max(timeline.first_token_s - prefix.admitted_s, 0.0))

    def _count_tiers(self, num_prompt: int, prefix: PrefixHit) -> None:
        num_found = prefix.host + prefix.disk
        self.tier_queries.add(num_prompt - prefix.num_tokens + num_found)
        self.tier_hits.add(num_found)
        self.tier_tokens.add(prefix.host, (("tier", "host"),))
        self.tier_tokens.add(prefix.disk, (("tier", "disk"),))
        if prefix.tier_miss:
            self.tier_misses.add(1, (("reason", prefix.tier_miss),))

    @property
    def tier_reasons(self) -> dict[str, int]:
        """Why tiers gave no more of prompts, and of how many; nothing where there are no tiers."""
        samples = () if self._client.tiers is None else self.tier_misses.samples()
        return {dict(labels)["reason"]: int(value) for _, labels, value in samples if labels}

    def _end(self, watch: Watch, outcome: Outcome, now: float) -> None:
        timeline = watch.timeline
        self.ended.add(1, (("finished_reason", FINISHED_REASON.get(outcome, "error")),))
        if outcome.is_success and not watch.request.is_batch:
            self.e2e.add(now - timeline.arrival_s)
            self.prompt_sizes.add(timeline.num_prompt)
            self.output_sizes.add(timeline.num_tokens)
            if timeline.first_token_s is not None:
                self.decode.add(now - timeline.first_token_s)
            if timeline.tpot_s is not None:
                self.tpot.add(timeline.tpot_s)
            if (timeline.ttft_s or 0.0) <= CHAT_TTFT_S and (timeline.tpot_s or 0.0) <= CHAT_TPOT_S:
                self.good.add()
        if self.recorder is not None:
            facts, request = self._client.facts, watch.request
            size = RECORDED_BLOCK if facts is None else facts.block_size
            self.recorder.write(request, watch.answer, size, timeline, outcome, now)

    def watches(self, call: Call) -> list[Watch]:
        """Of a call's requests, as many as are in progress or have ended."""
        return [*call.ended, *(self._open[one.request_id] for one in call.requests if one.request_id in self._open)]

    def timings(self, call: Call) -> dict[str, float]:
        """Milliseconds of the parts of a call that has ended; of several prompts, the slowest."""
        now = time.monotonic()
        watches = self.watches(call)
        parts = {"queue_ms": 0.0, "prefill_ms": 0.0, "decode_ms": 0.0}
        for watch in watches:
            timeline, admitted_s = watch.timeline, watch.admitted_s
            if admitted_s is None or timeline.first_token_s is None or timeline.last_token_s is None:
                continue
            parts["queue_ms"] = max(parts["queue_ms"], (admitted_s - timeline.arrival_s) * 1000)
            parts["prefill_ms"] = max(parts["prefill_ms"], (timeline.first_token_s - admitted_s) * 1000)
            parts["decode_ms"] = max(parts["decode_ms"], (timeline.last_token_s - timeline.first_token_s) * 1000)
        parts["queue_ms"] = max(parts["queue_ms"] - call.load_s * 1000, 0.0)
        parts["load_ms"] = call.load_s * 1000
        total = (now - call.arrival_s) * 1000
        parts["flush_ms"] = total - sum(parts.values())
        if not call.load_s:
            del parts["load_ms"]
        parts["total_ms"] = total
        grammars = [watch.grammar for watch in watches if watch.grammar is not None]
        if grammars:
            parts["grammar_compile_ms"] = sum(each.compile_s for each in grammars) * 1000
            parts["grammar_mask_ms"] = sum(each.mask_s for each in grammars) * 1000
        return {name: round(value, 3) for name, value in parts.items()}

    # Reading

    def _taken(self) -> float:
        facts = self._client.facts
        return 0.0 if facts is None else float(sum(size for what, size in facts.memory if what in TAKEN))

    def _waste(self) -> float:
        """Of the positions that requests hold, those without a token: ends of last blocks. Shared prefixes count once."""
        facts = self._client.facts
        held = 0.0 if facts is None else self._client.load.kv_usage_fraction * facts.num_cached_tokens
        if not held:
            return 0.0
        admitted = [watch for watch in self._open.values() if watch.prefix is not None]
        own = (one.timeline.num_prompt - (one.prefix.num_tokens if one.prefix else 0) for one in admitted)
        shared = max((one.prefix.num_tokens for one in admitted if one.prefix), default=0)
        used = shared + sum(own) + sum(one.timeline.num_tokens for one in admitted)
        return min(max(1.0 - used / held, 0.0), 1.0)

    @property
    def metrics(self) -> list[Metric]:
        client, admission = self._client, self._admission
        load = client.load
        facts = client.facts
        config = (
            (("block_size", str(facts.block_size)), ("num_gpu_blocks", str(facts.num_blocks)))
            if facts is not None
            else ()
        )
        rate = admission.drain.per_s(time.monotonic())
        num_lost = 0 if self.recorder is None else self.recorder.num_lost
        gauges = [
            Gauge("vllm:num_requests_running", "Sequences generating", lambda: load.num_running),
            Gauge("vllm:num_requests_waiting", "Sequences waiting", lambda: load.num_waiting),
            Gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1", lambda: load.kv_usage_fraction),
            Gauge("vllm:cache_config_info", "How the cache is laid out", lambda: 1.0, config),
            Gauge("penstock_device_memory_used_bytes", "Memory that weights, cache and workspace take", self._taken),
            Gauge("penstock_kv_waste_fraction", "Share of held KV positions that hold no token", self._waste),
            Gauge("penstock_waiting_tokens", "Prompt tokens waiting", lambda: load.num_waiting_tokens),
            Gauge("penstock_calls_open", "Calls in progress", lambda: admission.num_open),
            Gauge("penstock_drain_per_second", "Requests that leave the queue", lambda: rate),
            *_facts(facts),
            Gauge("penstock_engine_up", "1 while the engine is ready", lambda: float(client.is_ready)),
        ]
        counters = [
            Counter("vllm:num_preemptions", "Sequences preempted", load.num_preemptions),
            Counter("penstock_engine_restarts", "Engines started after the first", client.num_restarts),
            Counter("penstock_supervision_faults", "Faults of supervision, caught", client.num_supervision_faults),
            Counter("penstock_record_lines_lost", "Lines of --record that could not be written", num_lost),
            Counter("penstock_log_lines_lost", "Lines of the log that could not be written", num_lost_lines()),
            Counter("penstock_requests_refused", "Requests refused for lack of room", admission.num_refused),
        ]
        gauges += _step_model(self.step_model)
        gauges += _tier_sizes(client.tiers)
        counters += _tier_events(client.tiers)
        counters += [Counter(name, help, getattr(self._grammars, field)) for field, name, help in GRAMMARS]
        counters += transfer_metrics(client.transfers)
        own = [metric for metric in vars(self).values() if isinstance(metric, Counter | Buckets)]
        return [*gauges, *counters, *own]


def _step_model(model: OnlineStepModel) -> list[Gauge]:
    """What steps take here and now, and how far off that was lately; nothing until enough were seen."""
    errors = model.errors
    if errors is None:
        return []
    help = "Seconds that a step takes for one of each, as fitted to the last steps"
    terms = GaugeTable("penstock_step_seconds", help, [((("term", name),), one) for name, one in model.seconds.items()])
    rows = (
        (
            "penstock_step_model_error",
            "Median error of predicting a step not fitted yet, as a share of it",
            errors.median,
        ),
        ("penstock_step_model_error_p90", "Nine in ten of those errors are smaller", errors.p90),
        ("penstock_step_model_bias", "Predicted time of the last steps over theirs, less one", errors.bias),
    )
    return [terms, *(Gauge(name, help, partial(float, value)) for name, help, value in rows)]


def _tier_sizes(tiers: TierCounts | None) -> list[Gauge]:
    if tiers is None:
        return []
    rows = [((("tier", "host"),), tiers.host_bytes), ((("tier", "disk"),), tiers.disk_bytes)]
    return [GaugeTable("penstock_kv_tier_bytes", "Bytes of KV blocks that a tier holds", rows)]


def _tier_events(tiers: TierCounts | None) -> list[Counter]:
    if tiers is None:
        return []
    blocks = Counter("penstock_kv_tier_blocks", "Blocks stored, loaded, swapped back after a preemption, or declined")
    for event in ("stored", "loaded", "swapped", "declined"):
        blocks.add(getattr(tiers, f"{event}_blocks"), (("event", event),))
    return [
        blocks,
        Counter("penstock_kv_tier_faults", "Reads, writes and copies of tiers that failed", tiers.faults),
        Counter("penstock_kv_tier_canaries", "Loads that were read back and compared", tiers.canaries),
        Counter("penstock_kv_tier_attached", "Requests that waited for the load of another", tiers.attached),
    ]


def _facts(facts: Facts | None) -> list[Gauge]:
    """What of a loaded model decides how fast it could be."""
    if facts is None:
        return []
    memory = dict(facts.memory)
    rows = (
        ("penstock_max_batch_tokens", "Most tokens of a step", facts.max_batch_tokens),
        ("penstock_max_sequences", "Most sequences at once", facts.max_sequences),
        ("penstock_active_parameters", "Parameters that a token is multiplied with", facts.num_active_parameters),
        ("penstock_weight_bytes", "Memory that the weights take", memory.get("weights", 0)),
        ("penstock_kv_bytes", "Memory that the KV cache takes", memory.get("KV cache", 0)),
    )
    return [Gauge(name, help, partial(float, value)) for name, help, value in rows]
