"""Laws of an outage: the database goes and comes back, or the gateway is killed, and every request's usage is there, once."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from penstock.service.gateway import keys
from penstock.service.gateway.accounts import budgets
from penstock.service.gateway.accounts.usage import usage_sums
from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.limits import Denied
from penstock.service.gateway.schema import GATEWAY
from penstock.service.gateway.settings import GatewaySettings
from penstock.service.gateway.shedding import FleetLoad
from penstock.service.gateway.ticket import Asking, Spent
from penstock.service.store.database import SqliteDatabase
from penstock.service.store.journal import Journal
from penstock.service.store.postgres import PostgresDatabase
from tests.gateway.postgres import postgres, reason_against
from tests.machine import PATIENCE_S

NOW = 1_700_000_000.0
RULES = msgspec.convert({"prices": {"m": {"output": 1.0}}}, GatewaySettings)


def use(gateway: Gateway, record: keys.KeyRecord, count: int) -> None:
    for _ in range(count):
        ticket = gateway.admit(record, Asking("r", "m", 0, 10), FleetLoad(), 1.0, 0.0)
        gateway.settle(ticket, [Spent("m", 0, 0, 10)], "answered", 0.0, NOW)


def until(is_true) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def written(database) -> int:
    return sum(one.num_requests for one in usage_sums(database, ("model",)))


@pytest.mark.skipif(bool(reason_against()), reason=reason_against())
def test_a_postgresql_that_goes_in_mid_load_and_comes_back_has_every_record_once(tmp_path, caplog):
    with postgres() as server:
        database = PostgresDatabase(server.url, [GATEWAY])
        gateway = Gateway(RULES, database, NOW, tmp_path / "journal")
        _, record = keys.create_key(database, name="", tenant="acme", now=NOW)
        use(gateway, record, 50)
        server.stop()
        use(gateway, record, 200)
        until(lambda: "usage waits in the journal" in caplog.text)
        use(gateway, record, 100)
        gauges = {name: value for one in gateway.metrics() for name, _, value in one.samples()}
        assert gauges["penstock_gateway_unwritten"] >= 300
        assert gauges["penstock_gateway_records_lost"] == 0
        assert (tmp_path / "journal").read_bytes().count(b"\n") >= 300, "on disk too"
        server.start()
        gateway.refresh(NOW)
        until(lambda: not gateway.ledger.num_unwritten)
        assert written(database) == 350
        assert "the database is back" in caplog.text
        use(gateway, record, 10)
        until(lambda: not gateway.ledger.num_unwritten)
        assert written(database) == 360
        database.close()
        gateway.ledger.close()


@pytest.mark.skipif(bool(reason_against()), reason=reason_against())
def test_a_key_is_refused_by_another_gateway_as_soon_as_that_looks_and_an_outage_names_no_host():
    with postgres() as server:
        first, second = (PostgresDatabase(server.url, [GATEWAY]) for _ in range(2))
        gateway = Gateway(RULES, first, NOW)
        key, record = keys.create_key(second, name="", tenant="acme", now=NOW)
        budgets.set_budget(second, "tenant:acme", 10**9, "total", NOW)
        assert gateway.book.look(NOW)
        assert gateway.identify(key.encode(), NOW) == record
        assert not gateway.book.look(NOW), "nothing is new"
        ticket = gateway.admit(record, Asking("r", "m", 0, 10), FleetLoad(), 1.0, 0.0)
        server.stop()
        with pytest.raises(Denied) as denied:
            asyncio.run(gateway.reserve(ticket, NOW))
        assert denied.value.kind == "store"
        assert not any(word in str(denied.value) for word in ("127", "port", "host", str(server.port)))
        server.start()
        keys.revoke_key(second, record.key_id, NOW)
        gateway.book.look(NOW)
        assert gateway.identify(key.encode(), NOW) is None
        first.close()
        second.close()


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.gateway.test_outage import *
folder = Path({folder!r})
database = SqliteDatabase(folder / "g.db", [GATEWAY])
gateway = Gateway(RULES, database, NOW, folder / "journal")
_, record = keys.create_key(database, name="", tenant="acme", now=NOW)
blocker = __import__("sqlite3").connect(folder / "g.db", isolation_level=None)
blocker.execute("BEGIN IMMEDIATE")
use(gateway, record, 300)
print("used", flush=True)
time.sleep(600)
"""


def test_a_killed_gateway_loses_nothing_that_was_settled(tmp_path):
    """Its database was locked by somebody else, so all of it was on the way."""
    root = str(Path(__file__).parents[2])
    code = KILLED.format(root=root, folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout.readline() == "used\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with (tmp_path / "journal").open("ab") as file:
        file.write(b'["cut off in the mid')
    database = SqliteDatabase(tmp_path / "g.db", [GATEWAY])
    for _ in range(2):  # once, however often
        gateway = Gateway(RULES, database, NOW, tmp_path / "journal")
        assert (written(database), gateway.ledger.num_unwritten) == (300, 0)
        gateway.ledger.close()
    database.close()


def test_a_journal_that_is_full_says_so_and_two_beside_each_other_keep_apart(tmp_path):
    journal, other = Journal(tmp_path / "j", max_entries=2), Journal(tmp_path / "j")
    assert [journal.add(name, "x") for name in "abc"] == [True, True, False]
    assert other.add("z", "y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j", "j.1"]
    journal.remove("a")
    journal.close()
    other.close()
    again = Journal(tmp_path / "j")
    assert dict(again.first(9)).keys() >= {"b"}
    again.remove("a", "b")
    assert (tmp_path / "j").stat().st_size == 0
    again.close()


def test_a_locked_database_keeps_a_budgeted_call_waiting_for_seconds_and_no_reservation_is_left(tmp_path, monkeypatch):
    import sqlite3

    monkeypatch.setattr("penstock.service.gateway.gateway.RESERVE_S", 0.2)
    database = SqliteDatabase(tmp_path / "g.db", [GATEWAY])
    gateway = Gateway(RULES, database, NOW)
    _, record = keys.create_key(database, name="", tenant="acme", now=NOW)
    budgets.set_budget(database, "tenant:acme", 10**9, "total", NOW)
    gateway.refresh(NOW)
    blocker = sqlite3.connect(tmp_path / "g.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    ticket = gateway.admit(record, Asking("r", "m", 0, 10), FleetLoad(), 1.0, 0.0)
    with pytest.raises(Denied, match="in time"):
        asyncio.run(gateway.reserve(ticket, NOW))
    blocker.execute("ROLLBACK")
    blocker.close()
    database.read(lambda transaction: None).result()
    until(lambda: budgets.budgets(database)[0].reserved == 0 and not gateway.ledger.num_unwritten)
    database.close()
