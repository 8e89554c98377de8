"""The gate: who asks, whether they may, what it will cost and what it did cost.

`admit` decides at once from memory; only a key or tenant with a budget waits for the database (`reserve`). `settle` ends every
ticket exactly once. Told the time twice: `now` is monotonic, `unix_s` is what a calendar says.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import PenstockError, StoreError
from penstock.metrics.exposition import Counter, Gauge, Metric
from penstock.service.gateway import budgets
from penstock.service.gateway.answers import AnswerCache
from penstock.service.gateway.keys import KeyRecord, KeyRing, list_keys
from penstock.service.gateway.limits import Meter
from penstock.service.gateway.money import NANO, nanodollars
from penstock.service.gateway.names import Targets, targets_of
from penstock.service.gateway.settings import OUTSIDE, GatewaySettings, TenantSettings
from penstock.service.gateway.shedding import FleetLoad, shed_chance
from penstock.service.gateway.usage import UsageRecord, insert_record
from penstock.service.store.database import Database, Transaction

MAX_UNWRITTEN = 100_000
"""Records that may wait for the database before more are counted as lost."""


class Denied(PenstockError):
    """A request may not go on: whose rule it was, and when to come back."""

    def __init__(
        self, kind: str, message: str, wait_s: float = 0.0, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(message)
        self.kind = kind
        """requests, tokens, concurrency, budget, model, scope, context, shed or store"""
        self.wait_s = wait_s
        self.headers = tuple(headers)


@dataclass(frozen=True, slots=True)
class Asking:
    """What a request wants, as far as it can be known before."""

    request_id: str
    model: str
    num_prompt: int
    num_output: int
    tag: str = ""
    session: str = ""


@dataclass(slots=True)
class Admittance:
    """A request that was let in."""

    ask: Asking
    key: KeyRecord
    tenant: TenantSettings
    meter: Meter
    targets: Targets
    num_reserved: int
    scopes: tuple[str, ...] = ()
    reservation: budgets.Reservation | None = None
    is_settled: bool = field(default=False)


class Spent(NamedTuple):
    """Tokens that one model took."""

    model: str
    num_prompt: int
    num_cached: int
    num_output: int


class Gateway:
    def __init__(self, settings: GatewaySettings, database: Database, unix_s: float) -> None:
        self.settings = settings
        self.database = database
        self.instance = secrets.token_hex(8)
        self.answers = AnswerCache(settings.cache_mib << 20, settings.cache_s)
        self.denied = Counter("penstock_gateway_denied", "Requests refused, by tenant and rule")
        self.tokens = Counter("penstock_gateway_tokens", "Tokens, by tenant, model and kind")
        self.cost = Counter("penstock_gateway_cost_dollars", "What they cost, by tenant and model")
        self.num_lost = 0
        self.num_unwritten = 0
        """Records on their way to the database."""
        self._meters: dict[str, Meter] = {}
        self._ring = KeyRing([])
        self._budgeted: set[str] = set()
        priorities = settings.priorities
        self._ranks = {
            one: (number / (len(priorities) - 1) if len(priorities) > 1 else 1.0)
            for number, one in enumerate(priorities)
        }
        for name, tenant in settings.tenants.items():
            if tenant.budget_usd is not None:
                amount = nanodollars(tenant.budget_usd)
                budgets.set_budget(database, f"tenant:{name}", amount, tenant.budget_period, unix_s)
        self.refresh(unix_s)

    def refresh(self, unix_s: float) -> None:
        """Look at the database again: keys made or revoked, budgets set, gateways that died."""
        self._ring = KeyRing(list_keys(self.database))
        self._budgeted = {budget.scope for budget in budgets.budgets(self.database)}
        self.database.write(lambda t: budgets.beat(t, self.instance, unix_s)).result()

    # A request

    def identify(self, key: bytes, unix_s: float) -> KeyRecord | None:
        return self._ring.find(key, unix_s)

    def admit(self, key: KeyRecord, ask: Asking, load: FleetLoad, draw: float, now: float) -> Admittance:
        """Raises Denied. An admitted request must be settled."""
        tenant = self.settings.tenants.get(key.tenant, TenantSettings())
        meter = self._meter(key.tenant, tenant, now)
        try:
            targets = targets_of(
                ask.model, self.settings.models, ask.session or ask.request_id, may_leave=tenant.overflows
            )
            self._check(key, tenant, meter, ask)
            targets = self._shed(targets, meter, load, draw)
            num_reserved = ask.num_prompt + ask.num_output
            excess = meter.begin(num_reserved, now)
            if excess is not None:
                raise Denied(excess.what, excess.message + "; try later", excess.wait_s, meter.headers(now))
        except Denied as denied:
            self.denied.add(1, (("tenant", key.tenant), ("rule", denied.kind)))
            raise
        scopes = tuple(scope for scope in (f"tenant:{key.tenant}", f"key:{key.key_id}") if scope in self._budgeted)
        return Admittance(ask, key, tenant, meter, targets, num_reserved, scopes)

    def _check(self, key: KeyRecord, tenant: TenantSettings, meter: Meter, ask: Asking) -> None:
        tier = meter.tier
        if "inference" not in key.scopes:
            raise Denied("scope", "this key may not ask models; use one made with --scope inference")
        if ask.model.startswith(OUTSIDE):
            raise Denied("model", "outside APIs are asked by the operator's rules alone; ask for a model of ours")
        for allowed in (key.models, tenant.models):
            if allowed and ask.model not in allowed:
                raise Denied(
                    "model", f"this key may not ask the model {ask.model[:80]!r}; it may ask {', '.join(allowed)}"
                )
        if tier.max_prompt_tokens is not None and ask.num_prompt > tier.max_prompt_tokens:
            raise Denied(
                "context", f"the prompt has some {ask.num_prompt:,} tokens; this tier takes {tier.max_prompt_tokens:,}"
            )
        if tier.max_output_tokens is not None and ask.num_output > tier.max_output_tokens:
            raise Denied(
                "context",
                f"{ask.num_output:,} tokens of answer are asked for; this tier gives {tier.max_output_tokens:,}",
            )

    def _shed(self, targets: Targets, meter: Meter, load: FleetLoad, draw: float) -> Targets:
        """Where it goes: the whole chain, or outside alone where there is no room here and it may leave."""
        chance = shed_chance(load.worst, self._ranks.get(meter.tier.priority, 1.0))
        if draw >= chance:
            return targets
        outside = tuple(model for model in targets.models if model.startswith(OUTSIDE))
        if not outside:
            raise Denied("shed", f"the service is {load.worst:.0%} full ({load.reason}); try later", 1.0 + 4.0 * chance)
        return targets._replace(models=outside)

    async def reserve(self, ticket: Admittance, unix_s: float) -> None:
        """Set the money aside that it may cost at most, where there is a budget. Raises Denied: the ticket is settled then."""
        if not ticket.scopes:
            return
        ask = ticket.ask
        targets = ticket.targets
        amount = max(self._most(model, ask) for model in targets.models)
        if targets.cascade is not None:  # both may have to be paid
            amount += self._most(targets.cascade.first, ask)

        def work(transaction: Transaction) -> budgets.Reservation:
            return budgets.reserve(transaction, self.instance, ticket.scopes, amount, unix_s)

        try:
            ticket.reservation = await asyncio.wrap_future(self.database.write(work))
        except budgets.NoRoom as fault:
            self._deny(ticket, "budget", f"the budget of {fault.scope} is used up; ask the operator for more")
        except StoreError as error:
            self._deny(ticket, "store", f"the budget cannot be checked now: {error}")

    def _most(self, model: str, ask: Asking) -> int:
        """What one model may cost at most."""
        return self.settings.price(model).cost(ask.num_prompt, 0, ask.num_output)

    def _deny(self, ticket: Admittance, kind: str, message: str) -> None:
        ticket.is_settled = True
        ticket.meter.num_open -= 1
        self.denied.add(1, (("tenant", ticket.key.tenant), ("rule", kind)))
        raise Denied(kind, message)

    def settle(self, ticket: Admittance, spent: Sequence[Spent], outcome: str, now: float, unix_s: float) -> None:
        """It is over: what it used is what it is charged. `spent` has an entry a model that was asked."""
        if ticket.is_settled:
            return
        ticket.is_settled = True
        ticket.meter.end(ticket.num_reserved, sum(one.num_prompt + one.num_output for one in spent), now)
        tenant, key_id = ticket.key.tenant, ticket.key.key_id
        records = []
        for one in spent:
            model, num_prompt, num_cached, num_output = one
            cost = self.settings.price(model).cost(num_prompt, num_cached, num_output)
            for kind, count in (("prompt", num_prompt), ("cached", num_cached), ("output", num_output)):
                self.tokens.add(count, (("tenant", tenant), ("model", model), ("kind", kind)))
            self.cost.add(cost / NANO, (("tenant", tenant), ("model", model)))
            ask = ticket.ask
            records.append(UsageRecord(unix_s, ask.request_id, key_id, tenant, model, ask.tag, *one[1:], cost, outcome))
        reservation = ticket.reservation

        def work(transaction: Transaction) -> None:
            if reservation is not None:
                budgets.settle(transaction, reservation, sum(record.cost for record in records))
            for record in records:
                insert_record(transaction, record)

        if reservation is None and self.num_unwritten >= MAX_UNWRITTEN:
            self.num_lost += 1
            return
        self.num_unwritten += 1
        self.database.write(work).add_done_callback(self._written)

    def _written(self, done: object) -> None:
        self.num_unwritten -= 1

    # Reading

    def metrics(self) -> list[Metric]:
        return [
            self.denied,
            self.tokens,
            self.cost,
            Gauge(
                "penstock_gateway_unwritten", "Records on the way to the database", lambda: float(self.num_unwritten)
            ),
            Gauge("penstock_gateway_records_lost", "Records the database did not take", lambda: float(self.num_lost)),
            Gauge("penstock_gateway_cache_hits", "Answers given again", lambda: float(self.answers.num_hits)),
            Gauge(
                "penstock_gateway_open",
                "Requests admitted and not ended",
                lambda: float(sum(one.num_open for one in self._meters.values())),
            ),
        ]

    def _meter(self, name: str, tenant: TenantSettings, now: float) -> Meter:
        meter = self._meters.get(name)
        if meter is None:
            meter = self._meters[name] = Meter(self.settings.tier(tenant.tier), now)
        return meter
