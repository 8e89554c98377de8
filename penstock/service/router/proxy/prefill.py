"""Prompts computed by one replica for another: who computes, who is told where the blocks are, and what came of it.

The replica that answers fetches what the other has published, while it goes on computing. Whatever fails here costs time alone:
a replica that finds no blocks computes the prompt itself.
"""

from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.service.kv_events import PREFILL_HEADER, BlockOffer
from penstock.service.router.fleet import LiveReplica
from penstock.service.router.handover import FETCHED_BYTES_S, HandoverVerdict, PromptSite, Transfer, judge_handover
from penstock.service.router.policy import RoutedCall, num_held
from penstock.service.router.proxy.attempt import Attempt
from penstock.service.router.proxy.host import RelayHost
from penstock.service.router.proxy.job import PROMPT_PATHS, Job
from penstock.service.router.proxy.roles import RoleTuner
from penstock.service.upstream.connections import Headers

LEAST_TOKENS = 32
"""Shorter prompts are computed where they are answered, whatever is asked for."""


class PrefillRun:
    """One prompt being computed for another replica."""

    def __init__(self, host: RelayHost, replica: LiveReplica, job: Job, num_tokens: int) -> None:
        self._host = host
        self._attempt = Attempt(self, host, replica, num_tokens)
        self._status = 0
        self._attempt.send(job.asking(self._attempt.pool, PREFILL_HEADER))

    @property
    def is_running(self) -> bool:
        return not self._attempt.is_left

    def leave(self) -> None:
        """The blocks are not waited for any more."""
        if not self._attempt.is_left:
            self._attempt.leave(None)
            self._count("left")

    def on_head(self, attempt: Attempt, status: int, headers: Headers) -> None:
        self._status = status

    def on_part(self, data: bytes) -> None:
        """There is nothing to read."""

    def on_end(self, attempt: Attempt) -> None:
        is_good = self._status == 200
        attempt.leave(True if is_good else None)
        self._count("computed" if is_good else "refused")

    def on_failed(self, attempt: Attempt, message: str, is_gone: bool) -> None:
        attempt.leave(False)
        self._count("failed")
        if not attempt.is_own_fault:
            self._host.note_failure(attempt.replica, message, is_gone=is_gone)

    def _count(self, outcome: str) -> None:
        self._host.meters.handovers.add(1, (("replica", self._attempt.replica.name), ("outcome", outcome)))


class _Way(NamedTuple):
    """A replica from which blocks of a prompt could come."""

    replica: LiveReplica
    offer: BlockOffer
    verdict: HandoverVerdict
    computes: bool


class Handovers:
    """Decides for each request that is sent, and keeps what it has begun. `mode` is auto, always, never or retune: as auto, and
    replicas that were started for both change their roles with the load."""

    def __init__(self, host: RelayHost, mode: str) -> None:
        self._host = host
        self._mode = mode
        self._tuner = RoleTuner(host.fleet) if mode == "retune" else None

    def begin(self, job: Job, replica: LiveReplica, tried: list[str]) -> None:
        """The request goes to this replica: say where blocks of its prompt come from, and have them computed."""
        if job.prefill is not None and job.prefill.is_running:
            return  # whoever answers it now fetches from there too
        job.peer = b""
        has_own_prompt = job.request.method == "POST" and job.request.path in PROMPT_PATHS and not job.holder
        if self._mode == "never" or replica.offer is None or not has_own_prompt:
            return
        if self._tuner is not None:
            num_missing = _num_missing(job.call, replica, replica.offer.block_size)
            self._tuner.note(job.model, num_missing * _token_s(replica.offer), self._host.now())
        way = self._way(job, replica, replica.offer, tried)
        if way is None:
            return
        verdict, computes = way.verdict, way.computes
        choice = ("prefill" if computes else "fetch") if verdict.is_moved else "local"
        self._host.meters.handover_choices.add(1, (("choice", choice), ("why", verdict.why)))
        if not verdict.is_moved:
            return
        job.peer = way.offer.peer(urlsplit(way.replica.url).hostname or "127.0.0.1", computes=computes)
        if computes:
            num_missing = _num_missing(job.call, way.replica, way.offer.block_size)
            job.prefill = PrefillRun(self._host, way.replica, job, num_missing)

    def end(self, job: Job) -> None:
        """The request is over."""
        if job.prefill is not None:
            job.prefill.leave()
            job.prefill = None

    def _way(self, job: Job, replica: LiveReplica, offer: BlockOffer, tried: list[str]) -> _Way | None:
        """The best way to blocks of the prompt; None where no replica could have any."""
        fleet, now = self._host.fleet, self._host.now()
        ways = []
        for one in fleet.serving(job.model):
            theirs = one.offer
            is_other = one is not replica and one.name not in tried and theirs is not None and fleet.takes(one, now)
            if theirs is None or not is_other or theirs.block_bytes != offer.block_bytes:
                continue
            ways += self._ways_from(job.call, replica, offer, one, theirs)
        return min(ways, key=lambda way: (not way.verdict.is_moved, way.verdict.moved_s), default=None)

    def _ways_from(
        self, call: RoutedCall, replica: LiveReplica, offer: BlockOffer, one: LiveReplica, theirs: BlockOffer
    ) -> list[_Way]:
        transfer = Transfer(
            offer.block_bytes / offer.block_size / (offer.fetched_bytes_s or FETCHED_BYTES_S),
            is_shared=(offer.device, _host(replica)) == (theirs.device, _host(one)),
        )
        here = _site(call, replica, offer)
        ways = []
        num_more = (num_held(call.hashes, one.prefixes) - num_held(call.hashes, replica.prefixes)) * offer.block_size
        if num_more >= LEAST_TOKENS:
            fetched = PromptSite(0, 0, _token_s(theirs))
            verdict = judge_handover(here._replace(num_missing=num_more), fetched, transfer, replica.num_pending)
            ways.append(_Way(one, theirs, self._ruled(verdict), False))
        if one.role in ("prefill", "both") and here.num_missing >= LEAST_TOKENS:
            verdict = judge_handover(here, _site(call, one, theirs), transfer, replica.num_pending)
            if self._mode != "always" or one.only_prefills:
                ways.append(_Way(one, theirs, self._ruled(verdict), True))
        return ways

    def _ruled(self, verdict: HandoverVerdict) -> HandoverVerdict:
        return verdict._replace(is_moved=True, why="always") if self._mode == "always" else verdict


def _site(call: RoutedCall, replica: LiveReplica, offer: BlockOffer) -> PromptSite:
    return PromptSite(_num_missing(call, replica, offer.block_size), replica.num_waiting_tokens, _token_s(offer))


def _num_missing(call: RoutedCall, replica: LiveReplica, block_size: int) -> int:
    return max(call.num_tokens - num_held(call.hashes, replica.prefixes) * block_size, 0)


def _token_s(offer: BlockOffer) -> float:
    return 1.0 / offer.prompt_tokens_s if offer.prompt_tokens_s else 0.0


def _host(replica: LiveReplica) -> str:
    return urlsplit(replica.url).hostname or ""
