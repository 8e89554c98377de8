"""Disaggregation: prefill on some replicas, decode on others, and the transfer between them.

A prefill replica serves a request of one token. Its KV then travels over the replica's own link, one prompt after the
other, and a decode replica continues: its scheduler finds the prompt's full blocks cached and computes the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import ConfigError
from penstock.runtime.core.batch import Delta, FinishReason
from penstock.runtime.core.request import Request
from penstock.service.router.handover import PromptSite, Transfer, judge_handover
from penstock.tools.cost.hardware import Link
from penstock.tools.sim.clock import EventQueue
from penstock.tools.sim.pool import Pool
from penstock.tools.sim.replica.replica import TOKEN, Ledger


@dataclass(frozen=True, slots=True)
class Disaggregation:
    num_prefill: int
    """Replicas that compute prompts alone; the fleet's others generate."""
    link: Link
    """Of one prefill replica."""
    kv_bytes_per_token: float
    local_below: int = 0
    """Prompts of fewer tokens are computed where they are answered."""
    follows_rule: bool = False
    """Prompts are handed over only where the router would; else all that are long enough."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_prefill <= 10_000:
            raise ConfigError(f"{self.num_prefill} prefill replicas: choose 1 to 10000")
        if not 0.0 < self.kv_bytes_per_token < 1e12 or self.local_below < 0:
            raise ConfigError(
                "a token's keys and values take no bytes, or prompts below a negative length stay; choose more"
            )

    def is_local(self, request: Request) -> bool:
        return len(request.prompt) < self.local_below or request.params.max_tokens == 1 or request.params.n > 1

    def pays(self, request: Request, prefill: Pool, decode: Pool, waiting_s: float = 0.0) -> bool:
        """By the router's own rule, told what routers know: who is least busy, the pace at which prompts were computed, and
        `waiting_s`, until the link has carried what it has."""
        num_tokens = len(request.prompt)
        busy_s = sum(replica.busy_s for replica in prefill.members)
        num_computed = sum(replica.num_computed_tokens for replica in prefill.members)
        token_s = busy_s / num_computed if num_computed else 0.0
        here, there = decode.least_busy, prefill.least_busy
        verdict = judge_handover(
            PromptSite(num_tokens, here.num_waiting_tokens, token_s),
            PromptSite(num_tokens, there.num_waiting_tokens, token_s),
            Transfer(
                self.kv_bytes_per_token / self.link.bandwidth_bytes_per_s, self.link.latency_s, waiting_s=waiting_s
            ),
            here.num_pending,
        )
        return verdict.is_moved


@dataclass(slots=True)
class Handover:
    """Before the timelines of one prefill replica: a first token is not the end but the start of a transfer."""

    split: Disaggregation
    timelines: Ledger
    events: EventQueue
    go_on: Callable[[Request, float], None]
    num_transfers: int = 0
    transfer_s: float = 0.0
    """Of all transfers, their waits for the link included."""
    _requests: dict[int, Request] = field(default_factory=dict)
    _free_s: float = 0.0

    def waiting_s(self, now: float) -> float:
        """Until its link is free."""
        return max(self._free_s - now, 0.0)

    def shorten(self, request: Request) -> Request:
        """The request that a prefill replica serves in its place."""
        self._requests[request.request_id] = request
        return replace(request, params=replace(request.params, max_tokens=1, min_tokens=0))

    def refuse(self, request_id: int, now: float) -> None:
        self._requests.pop(request_id, None)
        self.timelines.refuse(request_id, now)

    def observe(self, deltas: Sequence[Delta], now: float) -> None:
        for delta in deltas:
            request = self._requests.pop(delta.request_id, None) if delta.finish is not None else None
            if request is not None and delta.finish is not None and delta.finish.reason is FinishReason.LENGTH:
                delta = delta._replace(finish=None)
                self._send(request, now)
            self.timelines.observe((delta,), now)

    def observe_run(self, delta: Delta, times: Sequence[float]) -> None:
        self.observe((delta,), times[-1])

    def _send(self, request: Request, now: float) -> None:
        link = self.split.link
        duration_s = len(request.prompt) * self.split.kv_bytes_per_token / link.bandwidth_bytes_per_s
        self._free_s = max(now, self._free_s) + duration_s
        end_s = self._free_s + link.latency_s
        self.num_transfers += 1
        self.transfer_s += end_s - now
        wanted = request.params.max_tokens
        rest = replace(
            request,
            prompt=(*request.prompt, TOKEN),
            params=replace(request.params, max_tokens=wanted - 1 if wanted else None, min_tokens=0),
        )
        self.events.post(end_s, lambda at_s: self.go_on(rest, at_s))
