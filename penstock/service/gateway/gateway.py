"""The gate: who asks, whether they may, what it will cost and what it did cost.

`admit` decides at once from memory; only a key or tenant with a budget waits for the database (`reserve`). `settle` ends every
ticket exactly once. Told the time twice: `now` is monotonic, `unix_s` is what a calendar says.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from penstock.errors import StoreError
from penstock.metrics.exposition import Counter, Gauge, Metric
from penstock.service.edge.tokens import SignedTokens
from penstock.service.gateway.accounts import budgets, later
from penstock.service.gateway.accounts.ledger import Settlement, UsageLedger
from penstock.service.gateway.accounts.money import NANO
from penstock.service.gateway.accounts.usage import UsageRecord
from penstock.service.gateway.answers import AnswerCache
from penstock.service.gateway.book import RuleBook
from penstock.service.gateway.keys import KeyRecord, record_of
from penstock.service.gateway.limits import Denied, Meter
from penstock.service.gateway.settings import OUTSIDE, GatewaySettings, Targets, TenantSettings, targets_of
from penstock.service.gateway.shedding import FleetLoad, shed_chance
from penstock.service.gateway.ticket import Admittance, Asking, Spent
from penstock.service.marks import TokenBound
from penstock.service.store.database import Database, Transaction
from penstock.service.store.journal import Journal

LOGGER = logging.getLogger(__name__)

RESERVE_S = 4.0
"""How long a request waits for its budget to be looked at."""
LATER_S = {"batch": 2 * 86_400.0, "background": 2 * 86_400.0, "left": 900.0}
"""How long the bill of a request may take whose tokens are made after it was answered."""
UNKNOWN_S = 600.0
"""How long a bill of an unknown account is left where it is."""


class Gateway:
    def __init__(
        self,
        settings: GatewaySettings,
        database: Database,
        unix_s: float,
        journal: Path | None = None,
        path: Path | None = None,
    ) -> None:
        """Without a journal, what the database does not take is in memory alone. `path` has the settings, and may change."""
        self.database = database
        self.book = RuleBook(settings, database, unix_s, path)
        self.sign_in = SignedTokens(settings.jwt) if settings.jwt is not None else None
        self.ledger = UsageLedger(database, Journal(journal))
        self.num_later = 0
        """Requests whose bills are still to come, as of the last look."""
        self.num_unbilled = 0
        self._unknown: dict[str, float] = {}
        """Bills of accounts that nobody knows, and since when."""
        self.instance = secrets.token_hex(8)
        self.answers = AnswerCache(settings.cache_mib << 20, settings.cache_s)
        self.denied = Counter("penstock_gateway_denied", "Requests refused, by tenant and rule")
        self.tokens = Counter("penstock_gateway_tokens", "Tokens, by tenant, model and kind")
        self.cost = Counter("penstock_gateway_cost_dollars", "What they cost, by tenant and model")
        self._meters: dict[str, Meter] = {}
        self.refresh(unix_s)

    @property
    def settings(self) -> GatewaySettings:
        """As they are now."""
        return self.book.settings

    def refresh(self, unix_s: float) -> None:
        """Look at the database again: keys made or revoked, budgets set, gateways that died."""
        if self.sign_in is not None:
            self.sign_in.look(unix_s)
        self.book.look(unix_s)
        self.ledger.retry()
        self.database.write(lambda t: budgets.beat(t, self.instance, unix_s)).result()
        self.num_later = self.database.read(later.count_later).result()
        if self.num_later:
            self.num_unbilled += self.database.write(lambda t: later.expire_later(t, unix_s)).result()

    # A request

    def identify(self, key: bytes, unix_s: float) -> KeyRecord | None:
        record = self.book.ring.find(key, unix_s)
        if record is not None or self.sign_in is None:
            return record
        holder = self.sign_in.find(key, unix_s)
        return record_of(holder) if holder is not None else None

    def unpriced(self, served: Sequence[str]) -> set[str]:
        """Models that are refused because they have no price, though something has."""
        settings = self.settings
        if not settings.prices and not self.book.budgeted:
            return set()
        named = {model for alias in settings.models.values() for model in (*alias.split, *alias.fallback)}
        return {model for model in {*served, *named} - set(settings.models) if settings.price(model) is None}

    def unbounded_tokens(self, key: KeyRecord, num_choices: int) -> int:
        """Tokens of a choice that asks for no bound."""
        tenant = self.settings.tenants.get(key.tenant, TenantSettings())
        most = self.book.tiers[tenant.tier].max_output_tokens
        unbounded = self.settings.unbounded_tokens
        return unbounded if most is None else max(min(unbounded, most // max(num_choices, 1)), 1)

    def admit(self, key: KeyRecord, ask: Asking, load: FleetLoad, draw: float, now: float) -> Admittance:
        """Raises Denied. An admitted request must be settled."""
        tenant = self.settings.tenants.get(key.tenant, TenantSettings())
        meter = self._meter(key.tenant, tenant, now)
        try:
            targets = targets_of(
                ask.model, self.settings.models, ask.session or ask.request_id, may_leave=tenant.overflows
            )
            self._check(key, tenant, meter, ask)
            scopes = tuple(
                scope for scope in (f"tenant:{key.tenant}", f"key:{key.key_id}") if scope in self.book.budgeted
            )
            if not ask.is_free:
                targets = self._priced(targets, ask, is_charged=bool(scopes or self.settings.prices))
                targets = self._shed(targets, meter, load, draw)
            num_reserved = ask.num_prompt + ask.num_output
            meter.begin(num_reserved, now)
        except Denied as denied:
            self.denied.add(1, (("tenant", key.tenant), ("rule", denied.kind)))
            raise
        return Admittance(ask, key, tenant, meter, targets, num_reserved, () if ask.is_free else scopes)

    def _priced(self, targets: Targets, ask: Asking, *, is_charged: bool) -> Targets:
        """Models that have a price, where anything has."""
        if not is_charged or ask.tier == "batch":  # a batch names its models in its lines
            return targets
        named = (*targets.models, targets.cascade.first) if targets.cascade is not None else targets.models
        unpriced = [model for model in named if self.settings.price(model) is None]
        models = tuple(model for model in targets.models if model not in unpriced)
        if not models or (targets.cascade is not None and targets.cascade.first in unpriced):
            raise Denied(
                "price",
                f"the model {(unpriced[0] or 'default')[:80]!r} has no price here; ask for one that has, or have the "
                "operator write one under [prices]",
            )
        return targets._replace(models=models)

    def _check(self, key: KeyRecord, tenant: TenantSettings, meter: Meter, ask: Asking) -> None:
        tier = meter.tier
        if "inference" not in key.scopes:
            raise Denied("scope", "this key may not ask models; use one made with --scope inference")
        if ask.model.startswith(OUTSIDE):
            raise Denied("model", "outside APIs are asked by the operator's rules alone; ask for a model of ours")
        for allowed in () if ask.is_free else (key.models, tenant.models):
            if allowed and ask.tier == "batch":
                raise Denied("model", "a key that is held to some models makes no batches, whose lines name any")
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
        chance = shed_chance(load.worst, self.book.ranks.get(meter.tier.priority, 1.0))
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
        amount, held = self._amount(ticket), ticket.reservation

        def work(transaction: Transaction) -> budgets.Reservation:
            if held is not None:
                return budgets.enlarge(transaction, held, amount)
            return budgets.reserve(transaction, self.instance, ticket.scopes, amount, unix_s)

        try:
            reserving = self.database.write(work)
            try:
                async with asyncio.timeout(RESERVE_S):
                    ticket.reservation = await asyncio.shield(asyncio.wrap_future(reserving))
            except (TimeoutError, asyncio.CancelledError):
                if not reserving.cancel():
                    reserving.add_done_callback(partial(self._give_back, held))
                raise
        except budgets.NoRoom as fault:
            self._deny(ticket, "budget", f"the budget of {fault.scope} is used up; ask the operator for more", unix_s)
        except TimeoutError:
            self._deny(ticket, "store", "the budget could not be looked at in time; try later", unix_s)
        except StoreError:
            LOGGER.exception("a budget cannot be looked at")
            self._deny(ticket, "store", "the budget cannot be looked at now; try later", unix_s)

    def _give_back(self, held: budgets.Reservation | None, done: "Future[budgets.Reservation]") -> None:
        """A request that ended before it was admitted."""
        if done.cancelled() or done.exception() is not None or held is not None:
            return  # an enlarged one is settled as a whole
        self.ledger.enter(Settlement(secrets.token_hex(8), reservation=done.result()))

    async def enlarge(self, ticket: Admittance, needs: TokenBound, now: float, unix_s: float) -> None:
        """The server that is to answer says that it may take more. Raises Denied: the ticket is settled then."""
        tier, ask = ticket.meter.tier, ticket.ask
        if tier.max_prompt_tokens is not None and needs.num_prompt > tier.max_prompt_tokens and ask.tier != "batch":
            limit = f"the prompt has {needs.num_prompt:,} tokens; this tier takes {tier.max_prompt_tokens:,}"
            self._deny(ticket, "context", limit, unix_s)
        num_reserved = needs.num_prompt + needs.num_output
        ticket.meter.charge(num_reserved - ticket.num_reserved, now)
        ticket.num_reserved = num_reserved
        ticket.ask = replace(ask, num_prompt=needs.num_prompt, num_output=max(needs.num_output, ask.num_output))
        await self.reserve(ticket, unix_s)

    def _amount(self, ticket: Admittance) -> int:
        """What the request may cost at most."""
        targets, ask = ticket.targets, ticket.ask
        if ask.tier == "batch":
            return self.settings.dearest.cost(ask.num_prompt, 0, ask.num_output)
        amount = max(self.settings.cost(model, ask.num_prompt, 0, ask.num_output, ask.tier) for model in targets.models)
        if targets.cascade is not None:  # both may have to be paid
            amount += self.settings.cost(targets.cascade.first, ask.num_prompt, 0, ask.num_output, ask.tier)
        return amount

    def _deny(self, ticket: Admittance, kind: str, message: str, unix_s: float) -> None:
        ticket.is_settled = True
        ticket.meter.num_open -= 1
        if ticket.reservation is not None:
            self.ledger.enter(Settlement(ticket.account, reservation=ticket.reservation))
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
        ask = ticket.ask
        for number, one in enumerate(spent):
            cost = self.settings.cost(*one, ask.tier)
            record_id = f"{ticket.account}.{number}"
            records.append(
                UsageRecord(
                    unix_s, ask.request_id, key_id, tenant, one.model, ask.tag, *one[1:], cost, outcome, record_id
                )
            )
            self._count(records[-1])
        if records or ticket.reservation is not None:
            self.ledger.enter(Settlement(ticket.account, tuple(records), ticket.reservation))

    def _count(self, record: UsageRecord) -> None:
        labels = (("tenant", record.tenant), ("model", record.model))
        counts = (("prompt", record.num_prompt), ("cached", record.num_cached), ("output", record.num_output))
        for kind, count in counts:
            self.tokens.add(count, (*labels, ("kind", kind)))
        self.cost.add(record.cost / NANO, labels)

    def settle_later(self, ticket: Admittance, why: str, now: float, unix_s: float) -> None:
        """It was answered, or its client left; the server that makes its tokens bills them."""
        if ticket.is_settled:
            return
        ticket.is_settled = True
        ticket.meter.end(ticket.num_reserved, 0, now)
        ask, key, held = ticket.ask, ticket.key, ticket.reservation
        row = later.LaterRow(
            account=ticket.account,
            reservation=held.reservation_id if held is not None else "",
            scopes=",".join(held.scopes) if held is not None else "",
            key_id=key.key_id,
            tenant=key.tenant,
            request_id=ask.request_id,
            tag=ask.tag,
            tier=ask.tier,
            expires_at=unix_s + LATER_S[why],
        )
        self.num_later += 1
        self.ledger.enter(Settlement(ticket.account, later=row))

    def take_bills(self, bills: Sequence[later.LaterBill], now: float, unix_s: float) -> list[str]:
        """Write them down, each once; returns those that are done with. Blocks; raises StoreError."""

        def work(transaction: Transaction) -> list[later.Billed]:
            return [later.write_bill(transaction, bill, self.settings, unix_s) for bill in bills]

        done = []
        for bill, billed in zip(bills, self.database.write(work).result(), strict=True):
            if billed.record is not None:
                self._count(billed.record)
                meter = self._meters.get(billed.record.tenant)
                if meter is not None:
                    meter.charge(bill.num_prompt + bill.num_output, now)
            if billed.is_known or self._unknown.setdefault(bill.id, now) + UNKNOWN_S < now:
                self._unknown.pop(bill.id, None)
                done.append(bill.id)
        return done

    # Reading

    def metrics(self) -> list[Metric]:
        ledger = self.ledger
        return [
            self.denied,
            self.tokens,
            self.cost,
            Gauge("penstock_gateway_unwritten", "Records on the way to the database", lambda: ledger.num_unwritten),
            Gauge("penstock_gateway_records_lost", "Records the journal had no room for", lambda: ledger.num_lost),
            Gauge("penstock_gateway_later", "Requests whose bills are to come", lambda: float(self.num_later)),
            Gauge("penstock_gateway_unbilled", "Requests nobody billed in time", lambda: float(self.num_unbilled)),
            Gauge("penstock_gateway_cache_hits", "Answers given again", lambda: float(self.answers.num_hits)),
            Gauge(
                "penstock_gateway_open",
                "Requests admitted and not ended",
                lambda: float(sum(one.num_open for one in self._meters.values())),
            ),
        ]

    def _meter(self, name: str, tenant: TenantSettings, now: float) -> Meter:
        meter, tier = self._meters.get(name), self.book.tiers[tenant.tier]
        if meter is None:
            meter = self._meters[name] = Meter(tier, now)
        elif meter.tier != tier:
            meter.change(tier, now)
        return meter
