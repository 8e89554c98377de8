"""The gateway at the router's door: keys from headers, what a request asks for in tokens, refusals in HTTP, and the bill.

Knows HTTP and the gateway; decides nothing itself.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import RequestError, StoreError
from penstock.service.edge.access import key_of
from penstock.service.edge.refusal import Refusal, limited, no_key, not_found, unavailable
from penstock.service.gateway.accounts.usage import usage_sums
from penstock.service.gateway.answers import KeptAnswer
from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.keys import KeyRecord
from penstock.service.gateway.limits import Denied
from penstock.service.gateway.settings import GuardrailSettings
from penstock.service.gateway.shedding import FleetLoad
from penstock.service.gateway.ticket import Admittance, Asking, Spent
from penstock.service.marks import TokenBound
from penstock.service.router.fleet import LiveFleet, ReplicaState
from penstock.service.router.proxy.asked import Wanted
from penstock.service.router.proxy.incoming import Incoming
from penstock.service.router.proxy.job import Job
from penstock.service.server.reading import TokenReading, is_free, read_request

LOGGER = logging.getLogger(__name__)
TAG_HEADER = b"x-penstock-tag"
LOOK_S = 0.25
"""Between two looks for keys made or revoked, budgets and rules set."""
REFRESH_S = 2.0
"""Between two signs of life in the database."""
CHAT_PATH = "/v1/chat/completions"
DAILY = ("day", "model")
"""What a tenant's own usage is summed by."""
COUNTED_PATHS = (CHAT_PATH, "/v1/completions")
"""Where a stream ends in counts if it is asked to."""


class Gate:
    def __init__(self, gateway: Gateway, fleet: LiveFleet) -> None:
        self.gateway = gateway
        self._fleet = fleet
        self._load = FleetLoad()
        self._reported: set[str] = set()

    # At the door

    def key(self, headers: dict[bytes, bytes]) -> KeyRecord:
        record = self.gateway.identify(key_of(headers), time.time())
        if record is None:
            raise no_key()
        return record

    def admit(self, request: Incoming, wanted: Wanted) -> Admittance:
        """Raises Denied, and Refusal for what cannot be read and so not be priced."""
        key, reading = request.caller, self._reading(request)
        name, bound, tier, later = wanted.model or "", TokenBound(0, 0), "", ""
        if reading is not None:
            name = reading.model
            bound = reading.bound(self.gateway.unbounded_tokens(key, reading.num_prompts * reading.num_choices))
            later = "" if not reading.is_later else "batch" if reading.kind == "batch" else "background"
            tier = "batch" if later == "batch" else "flex" if reading.tier == "flex" else ""
        model = self._model(name, is_free=reading is None)
        tag = request.headers.get(TAG_HEADER, b"").decode("latin-1")[:64]
        request_id = request.request_id.decode("latin-1")
        ask = Asking(request_id, model, *bound, tag, wanted.session, tier, later, is_free=reading is None)
        return self.gateway.admit(key, ask, self._load, random.random(), time.monotonic())

    @staticmethod
    def _reading(request: Incoming) -> TokenReading | None:
        """None where no tokens are made."""
        if is_free(request.method, request.path):
            return None
        try:
            reading = read_request(request.path, request.body) if request.method == "POST" else None
        except RequestError as error:
            raise Refusal(400, str(error), param=error.param, code=error.code) from None
        if reading is None:
            raise not_found("there is no such path here, or nothing that has a price")
        return reading

    def guardrails(self, request: Incoming) -> GuardrailSettings | None:
        """Guardrails that judge this request; None where no tokens are made. Raises Refusal for what they could not see."""
        guardrails = self.gateway.settings.guardrails
        if guardrails is None or is_free(request.method, request.path):
            return None
        reading = self._reading(request)
        if reading is not None and reading.is_later:
            message = "there is a guardrail, which cannot see what is answered later; send requests one by one"
            raise Refusal(403, message, type="permission_error", code="guardrail")
        return guardrails

    def _model(self, name: str, *, is_free: bool) -> str:
        """A request that names no model is for the first one that is served: what it costs is that one's price."""
        if is_free or name not in ("", "default") or name in self.gateway.settings.models:
            return name
        return next(iter(self._fleet.models), "")

    async def enlarge(self, ticket: Admittance, needs: TokenBound) -> None:
        await self.gateway.enlarge(ticket, needs, time.monotonic(), time.time())

    async def reserve(self, ticket: Admittance) -> None:
        await self.gateway.reserve(ticket, time.time())

    def settle(self, ticket: Admittance, spent: Sequence[Spent], outcome: str) -> None:
        self.gateway.settle(ticket, () if ticket.ask.is_free else spent, outcome, time.monotonic(), time.time())

    def settle_later(self, ticket: Admittance, why: str) -> None:
        self.gateway.settle_later(ticket, why, time.monotonic(), time.time())

    def usage(self, key: KeyRecord) -> bytes:
        """A tenant's own sums, for keys that may read them. Blocks."""
        if "usage" not in key.scopes:
            raise Refusal(
                403, "this key may not read usage; use one with that scope", type="permission_error", code="scope"
            )
        try:
            sums = usage_sums(self.gateway.database, DAILY, tenant=key.tenant)
        except StoreError:
            raise unavailable("usage cannot be read now; try later", 2, code="storage_unavailable") from None
        rows = [
            one.row(DAILY) | {"day": time.strftime("%Y-%m-%d", time.gmtime(int(one.group[0]) * 86_400))} for one in sums
        ]
        return msgspec.json.encode({"object": "list", "tenant": key.tenant, "data": rows})

    # A request that was let in

    def prepare(self, job: Job) -> None:
        """What the tenant's rules make of it."""
        wanted, targets = job.wanted, job.ticket.targets
        job.next_models = targets.models[targets.models.index(job.model) + 1 :]
        if targets.cascade is not None and job.request.path == CHAT_PATH and not wanted.stream:
            job.is_trial = True
            job.next_models = (job.model, *job.next_models)
            job.model = targets.cascade.first
            job.extra["logprobs"] = True
        if wanted.stream and job.request.path in COUNTED_PATHS:
            job.strips_usage = b"include_usage" not in bytes(wanted.stream_options)

    def remembered(self, job: Job) -> KeptAnswer | None:
        """Its answer, if an equal question was answered lately and the tenant wants it so."""
        ticket, request = job.ticket, job.request
        if not ticket.tenant.caches_answers or not is_repeatable(job.wanted, request.path):
            return None
        answers = self.gateway.answers
        job.cache_key = answers.key(ticket.key.tenant, request.path, job.model, request.body)
        return answers.find(job.cache_key, time.monotonic())

    def is_unsure(self, job: Job, body: bytes) -> bool:
        """The small model's answer is not to be trusted."""
        sure = confidence(body)
        is_unsure = sure is None or sure < job.ticket.targets.cascade.min_logprob
        if is_unsure and not job.wanted.logprobs:
            job.extra.pop("logprobs", None)
        return is_unsure

    def keep(self, job: Job, status: int, headers: bytes, body: bytes) -> bytes:
        """The answer as its client gets it, remembered where that is wanted."""
        if job.is_trial and not job.wanted.logprobs:
            body = without_logprobs(body)
        if job.cache_key:
            lines = [line + b"\r\n" for line in headers.split(b"\r\n") if line.startswith(b"content-type:")]
            self.gateway.answers.keep(job.cache_key, status, b"".join(lines), body, time.monotonic())
        return body

    # Every moment

    def weigh(self) -> None:
        """How full the fleet is now."""
        settings = self.gateway.settings
        ready = [
            one for one in self._fleet if one.state is ReplicaState.READY and not one.is_draining and not one.is_outside
        ]
        if not ready:
            self._load = FleetLoad()
            return
        pending = sum(one.num_pending for one in ready)
        wanting = [one.kv_usage_fraction for one in ready if one.num_waiting]
        wait_s = min(one.num_waiting_tokens * one.token_s for one in ready)
        self._load = FleetLoad(
            pending / (len(ready) * settings.max_pending),
            sum(wanting) / len(ready),
            wait_s / settings.max_wait_s,
        )

    async def refresh(self) -> None:
        refreshed_s = 0.0
        while True:
            await asyncio.sleep(LOOK_S)
            is_due = time.monotonic() - refreshed_s >= REFRESH_S
            look = self.gateway.refresh if is_due else self.gateway.book.look
            try:
                await asyncio.to_thread(look, time.time())
            except StoreError:
                continue  # the keys that are known stay known
            if is_due:
                refreshed_s = time.monotonic()
            self._report_unpriced()

    def _report_unpriced(self) -> None:
        """Once each: models that are served or named in rules and refused for want of a price."""
        unpriced = self.gateway.unpriced(self._fleet.models) - self._reported
        self._reported |= unpriced
        for model in sorted(unpriced):
            LOGGER.warning(
                'the model %r has no price: it is refused; write [prices."%s"] or [prices."*"]', model, model
            )


def refusal_of(denied: Denied) -> Refusal:
    """429 for what this key has too much of, 503 for what there is too little of for all, 4xx for what it may never do."""
    message, wait_s = str(denied), max(1, math.ceil(denied.wait_s))
    if denied.kind in ("scope", "model", "price"):
        code = {"model": "model_not_allowed", "price": "model_not_priced"}.get(denied.kind, "scope")
        return Refusal(
            403, message, type="permission_error", code=code, param=None if denied.kind == "scope" else "model"
        )
    if denied.kind == "context":
        return Refusal(400, message, code="context_length_exceeded")
    if denied.kind == "budget":
        headers = ((b"x-should-retry", b"false"),)
        return Refusal(429, message, type="insufficient_quota", code="insufficient_quota", headers=headers)
    if denied.kind in ("shed", "store"):
        return unavailable(message, wait_s)
    kind = "tokens" if denied.kind == "tokens" else "requests"
    return limited(message, wait_s, kind, denied.headers)


def is_repeatable(wanted: Wanted, path: str) -> bool:
    """An equal question has an equal answer: it is greedy or seeded, and answered whole."""
    is_fixed = wanted.temperature == 0.0 or wanted.seed is not None or path == "/v1/embeddings"
    return is_fixed and not wanted.stream


def confidence(body: bytes) -> float | None:
    """Mean log probability of the tokens of a chat answer; None if it does not say."""
    try:
        answer = msgspec.json.decode(body)
        entries = [entry["logprob"] for choice in answer["choices"] for entry in choice["logprobs"]["content"]]
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return None
    return sum(entries) / len(entries) if entries else None


def without_logprobs(body: bytes) -> bytes:
    """A chat answer as one that was not asked for log probabilities."""
    answer: dict[str, Any] = msgspec.json.decode(body)
    for choice in answer["choices"]:
        choice["logprobs"] = None
    return msgspec.json.encode(answer)
