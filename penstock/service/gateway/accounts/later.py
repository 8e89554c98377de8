"""Requests whose tokens are made after they were answered: batches, responses in the background, answers whose client left.

The reservation stays until the server that made the tokens has sent its bills; each bill is written once. What nobody bills
in time is charged in full where money was set aside, and said.
"""

import logging
from typing import NamedTuple

import msgspec

from penstock.service.gateway.accounts import budgets
from penstock.service.gateway.accounts.usage import UsageRecord, insert_record
from penstock.service.gateway.settings import GatewaySettings
from penstock.service.store.database import Transaction, insert, row_as, rows_as

LOGGER = logging.getLogger(__name__)


class LaterRow(NamedTuple):
    account: str
    reservation: str
    """Its id; empty where no money is set aside."""
    scopes: str
    key_id: str
    tenant: str
    request_id: str
    tag: str
    tier: str
    expires_at: float

    def spend(self, transaction: Transaction, cost: int, *, is_last: bool) -> None:
        scopes = list(filter(None, self.scopes.split(",")))
        budgets.spend(transaction, self.reservation, scopes, cost, is_last=is_last)
        if is_last:
            transaction.run("DELETE FROM later WHERE account = ?", (self.account,))


class LaterBill(msgspec.Struct, frozen=True):
    """As a server writes it."""

    id: str
    account: str
    model: str
    num_prompt: int
    num_cached: int
    num_output: int
    is_last: int


class Billed(NamedTuple):
    """What came of a bill."""

    is_known: bool
    record: UsageRecord | None = None
    """What was charged, where it is new and holds tokens."""


COLUMNS = ", ".join(LaterRow._fields)


def open_later(transaction: Transaction, row: LaterRow) -> None:
    insert(transaction, f"later ({COLUMNS})", row, "ON CONFLICT DO NOTHING")
    if row.reservation:
        transaction.run("UPDATE reservations SET gateway = '' WHERE id = ?", (row.reservation,))


def count_later(transaction: Transaction) -> int:
    return int(transaction.rows("SELECT COUNT(*) FROM later")[0][0])


def write_bill(transaction: Transaction, bill: LaterBill, settings: GatewaySettings, unix_s: float) -> Billed:
    """Once, however often it is brought."""
    row = row_as(transaction, LaterRow, f"SELECT {COLUMNS} FROM later WHERE account = ?", (bill.account,))
    if row is None:
        return Billed(False)
    counts = (bill.num_prompt, bill.num_cached, bill.num_output)
    cost = settings.cost(bill.model, *counts, row.tier)
    record = UsageRecord(
        unix_s, row.request_id, row.key_id, row.tenant, bill.model, row.tag, *counts, cost, "later", bill.id
    )
    has_tokens = any(counts)
    is_new = insert_record(transaction, record) if has_tokens else bool(bill.is_last)
    if is_new:
        row.spend(transaction, cost, is_last=bool(bill.is_last))
    return Billed(True, record if is_new and has_tokens else None)


def expire_later(transaction: Transaction, unix_s: float) -> int:
    """Charge in full what nobody billed in time; returns how many that was."""
    rows = rows_as(transaction, LaterRow, f"SELECT {COLUMNS} FROM later WHERE expires_at < ?", (unix_s,))
    for row in rows:
        left = transaction.rows("SELECT amount FROM reservations WHERE id = ?", (row.reservation,))
        cost = int(left[0][0]) if left else 0
        row.spend(transaction, cost, is_last=True)
        insert_record(
            transaction,
            UsageRecord(
                unix_s, row.request_id, row.key_id, row.tenant, "", row.tag, 0, 0, 0, cost, "unbilled", row.account
            ),
        )
        LOGGER.warning(
            "request %s was never billed; %d nanodollars that were set aside are spent", row.request_id, cost
        )
    return len(rows)
