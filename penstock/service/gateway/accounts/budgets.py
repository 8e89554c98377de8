"""Budgets in money that hold under concurrency: reserve before, settle after, both in the database's own transactions.

A request reserves what it may cost at most; the database adds it only where spent + reserved stays within the amount. When it
is over, the reservation becomes what it really cost. So the amount is never passed by more than requests cost beyond what they
reserved, however many gateways share the database. A gateway that died leaves reservations: they are charged in full once it
has not been seen for a while, since what its requests cost nobody knows.
"""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.errors import ConfigError
from penstock.service.gateway.schema import change
from penstock.service.store.database import Database, Transaction, insert, rows_as

PERIODS = {"total": "", "day": "%Y-%m-%d", "month": "%Y-%m"}
LOST_S = 60.0
"""A gateway not seen for so long is taken for dead."""


class SpendingLimit(NamedTuple):
    scope: str
    """tenant:NAME or key:ID"""
    amount: int
    spent: int
    reserved: int
    period: str


class Reservation(NamedTuple):
    reservation_id: str
    scopes: tuple[str, ...]
    amount: int


class NoRoom(Exception):
    """A budget is used up; what was taken of others before it is undone with the transaction."""

    def __init__(self, scope: str) -> None:
        super().__init__(scope)
        self.scope = scope


def set_budget(database: Database, scope: str, amount: int, period: str, unix_s: float) -> None:
    """What was spent in the present period stays spent."""
    if period not in PERIODS:
        raise ConfigError(f"there is no period {period!r}; choose of {', '.join(PERIODS)}")
    sql = (
        "INSERT INTO budgets (scope, amount, spent, reserved, period, period_start) VALUES (?, ?, 0, 0, ?, ?) "
        "ON CONFLICT (scope) DO UPDATE SET amount = excluded.amount, period = excluded.period, "
        "spent = CASE WHEN budgets.period = excluded.period THEN budgets.spent ELSE 0 END, "
        "period_start = CASE WHEN budgets.period = excluded.period THEN budgets.period_start ELSE excluded.period_start END"
    )
    change(database, lambda t: t.run(sql, (scope, amount, period, _start(period, unix_s))))


def delete_budget(database: Database, scope: str) -> None:
    if not change(database, lambda t: t.run("DELETE FROM budgets WHERE scope = ?", (scope,))):
        raise ConfigError(f"{scope!r} has no budget")


def budgets(database: Database) -> list[SpendingLimit]:
    sql = "SELECT scope, amount, spent, reserved, period FROM budgets ORDER BY scope"
    return database.read(lambda t: rows_as(t, SpendingLimit, sql)).result()


def reserve(transaction: Transaction, gateway: str, scopes: Sequence[str], amount: int, unix_s: float) -> Reservation:
    """Within every budget of these scopes; raises NoRoom. Scopes without a budget are without bound."""
    for scope in sorted(scopes):  # the same order everywhere: two gateways never wait for each other
        for period in ("day", "month"):
            transaction.run(
                "UPDATE budgets SET spent = 0, period_start = ? WHERE scope = ? AND period = ? AND period_start <> ?",
                (_start(period, unix_s), scope, period, _start(period, unix_s)),
            )
        _take(transaction, scope, amount)
    made = Reservation(secrets.token_hex(8), tuple(scopes), amount)
    row = (made.reservation_id, gateway, ",".join(scopes), amount)
    insert(transaction, "reservations (id, gateway, scopes, amount)", row)
    return made


def _take(transaction: Transaction, scope: str, amount: int) -> None:
    """Set more of a budget aside, if the scope has one; raises NoRoom."""
    sql = "UPDATE budgets SET reserved = reserved + ? WHERE scope = ? AND spent + reserved + ? <= amount"
    is_taken = transaction.run(sql, (amount, scope, amount))
    if not is_taken and transaction.rows("SELECT 1 FROM budgets WHERE scope = ?", (scope,)):
        raise NoRoom(scope)


def enlarge(transaction: Transaction, reservation: Reservation, amount: int) -> Reservation:
    """The same with more set aside; raises NoRoom."""
    more = amount - reservation.amount
    if not transaction.run("UPDATE reservations SET amount = ? WHERE id = ?", (amount, reservation.reservation_id)):
        raise NoRoom(reservation.scopes[0])  # it is settled: its request is over
    for scope in sorted(reservation.scopes):
        _take(transaction, scope, more)
    return reservation._replace(amount=amount)


def spend(transaction: Transaction, reservation_id: str, scopes: Sequence[str], cost: int, *, is_last: bool) -> None:
    """A part of what a reservation is for is spent; with the last, what is left of it is free again."""
    rows = transaction.rows("SELECT amount FROM reservations WHERE id = ?", (reservation_id,))
    left = int(rows[0][0]) if rows else 0
    freed = left if is_last else min(cost, left)
    _charge(transaction, scopes, freed, cost)
    if is_last:
        transaction.run("DELETE FROM reservations WHERE id = ?", (reservation_id,))
    else:
        transaction.run("UPDATE reservations SET amount = amount - ? WHERE id = ?", (freed, reservation_id))


def settle(transaction: Transaction, reservation: Reservation, cost: int) -> None:
    """Once: a reservation that is gone was charged already."""
    held = transaction.rows("SELECT amount FROM reservations WHERE id = ?", (reservation.reservation_id,))
    if transaction.run("DELETE FROM reservations WHERE id = ?", (reservation.reservation_id,)):
        _charge(transaction, reservation.scopes, held[0][0], cost)


def _charge(transaction: Transaction, scopes: Sequence[str], freed: int, cost: int) -> None:
    sql = "UPDATE budgets SET reserved = reserved - ?, spent = spent + ? WHERE scope = ?"
    for scope in sorted(scopes):
        transaction.run(sql, (freed, cost, scope))


def beat(transaction: Transaction, gateway: str, unix_s: float) -> int:
    """Say that this gateway lives, and charge what dead ones had reserved; returns how many reservations that was.

    Who was not seen for long itself judges nobody yet: the database may have been away from all.
    """
    mine = transaction.rows("SELECT seen_at FROM gateways WHERE id = ?", (gateway,))
    rest = "ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at"
    insert(transaction, "gateways (id, seen_at)", (gateway, unix_s), rest)
    if mine and mine[0][0] < unix_s - LOST_S / 2:
        return 0
    lost = transaction.rows(
        "SELECT r.id, r.scopes, r.amount FROM reservations r LEFT JOIN gateways g ON g.id = r.gateway "
        "WHERE r.gateway <> '' AND (g.seen_at IS NULL OR g.seen_at < ?)",
        (unix_s - LOST_S,),
    )
    for reservation_id, scopes, amount in lost:
        settle(transaction, Reservation(reservation_id, tuple(scopes.split(",")), amount), amount)
    transaction.run("DELETE FROM gateways WHERE seen_at < ?", (unix_s - 10 * LOST_S,))
    return len(lost)


def _start(period: str, unix_s: float) -> str:
    form = PERIODS[period]
    return datetime.fromtimestamp(unix_s, UTC).strftime(form) if form else ""
