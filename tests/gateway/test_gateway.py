"""Laws of the gate: keys are found in their digests alone, limits hold, money is never spent twice or lost."""

import asyncio
import math
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.service.gateway.accounts import budgets
from penstock.service.gateway.accounts.money import NANO, Price, nanodollars
from penstock.service.gateway.accounts.usage import usage_sums
from penstock.service.gateway.answers import AnswerCache
from penstock.service.gateway.audit import AuditEntry, audit_entries, write_audit
from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.keys import KeyRing, create_key, list_keys, revoke_key, rotate_key
from penstock.service.gateway.limits import Denied, Meter, Tier
from penstock.service.gateway.schema import GATEWAY
from penstock.service.gateway.settings import AliasSettings, GatewaySettings, TenantSettings, read_settings, targets_of
from penstock.service.gateway.shedding import FleetLoad, shed_chance
from penstock.service.gateway.ticket import Asking, Spent
from penstock.service.store.database import Database, SqliteDatabase
from penstock.service.store.postgres import PostgresDatabase
from tests.gateway.postgres import postgres as running_postgres
from tests.gateway.postgres import reason_against

NOW = 1_700_000_000.0


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    if reason_against():
        pytest.skip(reason_against())
    with running_postgres() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator:
    """Opens the same database again and again, as gateways do."""
    made: list[Database] = []

    def open_one() -> Database:
        if request.param == "sqlite":
            made.append(SqliteDatabase(tmp_path / "gateway.db", [GATEWAY]))
        else:
            made.append(PostgresDatabase(request.getfixturevalue("postgres"), [GATEWAY]))
        return made[-1]

    if request.param == "postgres":
        first = open_one()
        for table in ("keys", "budgets", "reservations", "gateways", "usage_records"):
            first.write(lambda t, table=table: t.run(f"DELETE FROM {table}")).result()
    yield open_one
    for database in made:
        database.close()


def settings(**fields) -> GatewaySettings:
    return msgspec.convert(fields, GatewaySettings)


def test_a_key_opens_its_own_record_until_it_is_revoked_expired_or_rotated_away(opened):
    database = opened()
    key, record = create_key(database, name="ci", tenant="acme", now=NOW, expires_s=100)
    assert key.encode() not in b"".join(one.digest for one in list_keys(database))
    ring = KeyRing(list_keys(database))
    assert ring.find(key.encode(), NOW) == record
    assert ring.find(key.encode(), NOW + 100) is None
    for wrong in (b"", b"psk__", key[:-1].encode(), (key + "x").encode(), key.replace("psk", "pks").encode()):
        assert ring.find(wrong, NOW) is None
    new, _ = rotate_key(database, record.key_id, NOW, 10.0)
    ring = KeyRing(list_keys(database))
    assert ring.find(new.encode(), NOW + 50)
    assert ring.find(key.encode(), NOW + 9)
    assert ring.find(key.encode(), NOW + 11) is None
    revoke_key(database, new.split("_")[1], NOW)
    assert KeyRing(list_keys(database)).find(new.encode(), NOW) is None
    with pytest.raises(ConfigError, match="no valid key"):
        revoke_key(database, "nobody", NOW)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), max_size=60))
def test_nobody_gets_more_of_a_minute_than_it_has(asked):
    tier = Tier(requests_per_minute=10, tokens_per_minute=100)
    meter, now, let_in = Meter(tier, 0.0), 0.0, []
    for pause_s, tokens in asked:
        now += pause_s
        wait_s = denied_s(meter, tokens, now)
        if wait_s is None:
            let_in.append((now, tokens))
            meter.end(tokens, tokens, now)
        else:
            assert wait_s > 0.0
    for start_s, _ in let_in:
        inside = [tokens for at_s, tokens in let_in if start_s <= at_s < start_s + 60.0]
        assert len(inside) <= 20  # a full bucket and what a minute fills
        assert sum(inside) <= 200


def denied_s(meter: Meter, num_tokens: int, now: float) -> float | None:
    """How long a request is told to wait; None where it is let in."""
    try:
        meter.begin(num_tokens, now)
    except Denied as denied:
        return denied.wait_s
    return None


def test_tokens_not_used_are_given_back_and_concurrency_is_bounded():
    meter = Meter(Tier(tokens_per_minute=100, concurrency=1), 0.0)
    meter.begin(100, 0.0)
    with pytest.raises(Denied) as fault:
        meter.begin(1, 0.0)
    assert fault.value.kind == "concurrency"
    meter.end(100, 10, 0.0)
    meter.begin(90, 0.0)
    with pytest.raises(Denied) as fault:
        meter.begin(101, 0.0)
    assert fault.value.kind == "concurrency"


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**7))
def test_prices_are_exact_and_rounded_up(prompt, cached, output):
    price = Price(0.1, 0.4, 0.02)
    cached = min(cached, prompt)
    exact = (prompt - cached) * 100 + cached * 20 + output * 400
    assert price.cost(prompt, cached, output) == exact
    assert Price(0.0001).cost(1, 0, 0) == 1
    assert nanodollars(0.1) == NANO // 10


def test_64_spenders_never_pass_a_budget_with_a_restart_and_two_gateways(opened):
    """Each request costs a cent at most, and half a cent in the end."""
    rules = settings(prices={"m": {"output": 10.0}}, tenants={"acme": {"budget_usd": 1.0, "budget_period": "total"}})
    first_database = opened()
    key, _ = create_key(first_database, name="", tenant="acme", now=NOW)
    asking = Asking("r", "m", 0, 1000)

    async def spend(gateway: Gateway, num_requests: int) -> int:
        async def one() -> int:
            record = gateway.identify(key.encode(), NOW)
            try:
                ticket = gateway.admit(record, asking, FleetLoad(), 1.0, 0.0)
                await gateway.reserve(ticket, NOW)
            except Denied as denied:
                return 0 if denied.kind == "budget" else 10**6
            await asyncio.sleep(0)
            gateway.settle(ticket, [Spent("m", 0, 0, 500)], "answered", 0.0, NOW)
            return 1

        return sum(await asyncio.gather(*(one() for _ in range(num_requests))))

    def spent() -> tuple[int, int]:
        (limit,) = budgets.budgets(first_database)
        return limit.spent, limit.reserved

    first = Gateway(rules, first_database, NOW)

    def all_written(*gateways: Gateway) -> None:
        while any(gateway.ledger.num_unwritten for gateway in gateways):
            time.sleep(0.01)

    done = asyncio.run(spend(first, 64))
    all_written(first)
    second = Gateway(rules, opened(), NOW)  # another gateway, or the same after a restart

    async def both() -> int:
        return sum(await asyncio.gather(*(spend(gateway, 64) for gateway in (first, second) for _ in range(3))))

    done += asyncio.run(both())
    all_written(first, second)
    while asyncio.run(spend(second, 1)):
        done += 1
        all_written(second)
    amount, reserved = spent()
    assert reserved == 0
    assert amount == done * nanodollars(0.005) <= nanodollars(1.0)
    assert amount > nanodollars(0.985), "what is left is less than one request may cost"
    (total,) = usage_sums(first_database, ("tenant",))
    assert (total.num_requests, total.cost) == (done, amount)


def test_a_dead_gateways_reservations_are_charged(opened):
    database = opened()
    budgets.set_budget(database, "tenant:acme", 1000, "total", NOW)
    database.write(lambda t: budgets.beat(t, "dead", NOW)).result()
    held = database.write(lambda t: budgets.reserve(t, "dead", ("tenant:acme",), 400, NOW)).result()
    assert database.write(lambda t: budgets.beat(t, "alive", NOW + 30)).result() == 0
    assert database.write(lambda t: budgets.beat(t, "alive", NOW + 100)).result() == 0, "it was away itself"
    assert database.write(lambda t: budgets.beat(t, "alive", NOW + 102)).result() == 1
    (limit,) = budgets.budgets(database)
    assert (limit.spent, limit.reserved) == (400, 0)
    database.write(lambda t: budgets.settle(t, held, 10)).result()  # it was not dead after all: charged once
    assert budgets.budgets(database)[0].spent == 400


def test_what_operators_do_is_written_down_newest_first(opened):
    database = opened()
    before = len(audit_entries(database))
    for number, action in enumerate(("add", "drain", "remove")):
        write_audit(database, AuditEntry(NOW * 2 + number, "admin", action, "r1 http://127.0.0.1:1")).result()
    assert [entry.action for entry in audit_entries(opened(), 3)] == ["remove", "drain", "add"]
    assert len(audit_entries(database)) == before + 3


def test_a_new_period_begins_with_nothing_spent(opened):
    database = opened()
    budgets.set_budget(database, "key:a", 100, "day", NOW)
    held = database.write(lambda t: budgets.reserve(t, "g", ("key:a",), 100, NOW)).result()
    database.write(lambda t: budgets.settle(t, held, 100)).result()
    with pytest.raises(budgets.NoRoom):
        database.write(lambda t: budgets.reserve(t, "g", ("key:a",), 1, NOW + 60)).result()
    assert database.write(lambda t: budgets.reserve(t, "g", ("key:a",), 1, NOW + 86_400)).result()


def test_rules_of_tenants_and_tiers_keep_requests_out(tmp_path):
    rules = settings(
        tiers={"free": {"max_output_tokens": 10, "max_prompt_tokens": 20}, "pro": {"priority": 5}},
        tenants={"acme": {"tier": "free", "models": ["m"]}, "big": {"tier": "pro"}},
    )
    gateway = Gateway(rules, SqliteDatabase(tmp_path / "g.db", [GATEWAY]), NOW)
    records = {}
    for tenant, scope in (("acme", "inference"), ("big", "inference"), ("reader", "usage")):
        _, records[tenant] = create_key(gateway.database, name="", tenant=tenant, now=NOW, scopes=(scope,))

    def rule(tenant: str, load: float = 0.0, draw: float = 1.0, **fields) -> str:
        asking = Asking(**({"request_id": "r", "model": "m", "num_prompt": 1, "num_output": 1} | fields))
        try:
            gateway.admit(records[tenant], asking, FleetLoad(load), draw, 0.0)
        except Denied as denied:
            return denied.kind
        return ""

    assert rule("acme") == ""
    assert rule("acme", model="other") == "model"
    assert rule("acme", num_output=11) == "context"
    assert rule("acme", num_prompt=21) == "context"
    assert rule("reader") == "scope"
    assert rule("acme", load=0.9, draw=0.3) == "shed"
    assert rule("big", load=0.9, draw=0.0) == ""
    assert rule("big", load=1.0, draw=0.99) == "shed"
    gateway.database.close()


@given(st.floats(0, 2), st.floats(0, 1))
def test_shedding_begins_at_eight_tenths_is_total_at_full_and_spares_higher_ranks(load, rank):
    chance = shed_chance(load, rank)
    assert 0.0 <= chance <= shed_chance(load, 0.0) <= 1.0
    assert chance == 0.0 if load <= 0.8 else True
    assert chance == 1.0 if load >= 1.0 else True
    assert FleetLoad(0.1, load, 0.2).worst == max(0.2, load)


def test_splits_keep_their_shares_and_whoever_asks_again_gets_the_same_side():
    aliases = {"chat": AliasSettings(split={"a": 9, "b": 1}, fallback=("c", "outside:x"))}
    found = [targets_of("chat", aliases, f"s{number}", may_leave=False).models for number in range(2000)]
    assert found == [targets_of("chat", aliases, f"s{number}", may_leave=False).models for number in range(2000)]
    share = sum(models[0] == "b" for models in found) / 2000
    assert math.isclose(share, 0.1, abs_tol=0.03)
    assert {models[1:] for models in found} == {("c",)}
    assert targets_of("chat", aliases, "s", may_leave=True).models[-1] == "outside:x"
    assert targets_of("plain", aliases, "s", may_leave=True).models == ("plain",)


def test_kept_answers_stay_within_their_memory_and_time():
    cache = AnswerCache(1000, 10.0)
    keys = [cache.key("acme", "/v1/x", "m", b"%d" % number) for number in range(20)]
    for key in keys:
        cache.keep(key, 200, b"", b"x" * 100, 0.0)
    assert [cache.find(key, 1.0) is not None for key in keys] == [False] * 10 + [True] * 10
    assert cache.find(keys[-1], 10.0) is None
    assert cache.key("acme", "/v1/x", "m", b"1") != cache.key("other", "/v1/x", "m", b"1")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tiers = 3", "tiers"),
        ("[tiers.free]\nrequests = 3", "no tier has"),
        ("[tenants.a]\ntier = 'gold'", "no tier 'gold'"),
        ("[models.chat]\nfallback = ['outside:x']", "outside"),
        ("[prices.m]\ninput = -1", "below 0"),
        ("[outside.x]\nurl = 'file:///etc/passwd'\nmodel = 'm'", "http"),
        ("[tenants.a]\nbudget = 3", "budget"),
        ("=", "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(tmp_path, text, fault):
    (tmp_path / "g.toml").write_text(text)
    with pytest.raises(ConfigError, match=fault):
        read_settings(tmp_path / "g.toml")
    assert TenantSettings().tier == "default"
