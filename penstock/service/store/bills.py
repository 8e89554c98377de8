"""What was made for others to be paid for: bills of tokens that were made after their request had been answered.

A bill is written in the transaction that keeps what was made, under an id of its own, and lies here until the gateway that
asked has written it down. `owner` is the key it came with, `account` the gateway's own word for the request.
"""

from typing import NamedTuple

from penstock.service.store.database import Schema, Transaction, insert, row_as, rows_as

SCHEMA = Schema(
    "bills",
    (
        (
            "CREATE TABLE accounts (job TEXT PRIMARY KEY, owner TEXT NOT NULL, account TEXT NOT NULL, "
            "is_bounded BIGINT NOT NULL, num_prompt BIGINT NOT NULL, num_output BIGINT NOT NULL)",
            "CREATE TABLE bills (id TEXT PRIMARY KEY, owner TEXT NOT NULL, account TEXT NOT NULL, model TEXT NOT NULL, "
            "num_prompt BIGINT NOT NULL, num_cached BIGINT NOT NULL, num_output BIGINT NOT NULL, is_last BIGINT NOT NULL)",
        ),
    ),
)


class AccountRow(NamedTuple):
    job: str
    owner: str
    account: str
    is_bounded: int
    num_prompt: int
    """With `num_output`: tokens it may take, where it is bounded."""
    num_output: int


class Bill(NamedTuple):
    id: str
    owner: str
    account: str
    model: str
    num_prompt: int
    num_cached: int
    num_output: int
    is_last: int
    """Nothing more comes under this account."""


def open_account(transaction: Transaction, row: AccountRow) -> None:
    insert(transaction, "accounts", row, "ON CONFLICT DO NOTHING")


def account_of(transaction: Transaction, job: str) -> AccountRow | None:
    return row_as(transaction, AccountRow, "SELECT * FROM accounts WHERE job = ?", (job,))


def add_bill(transaction: Transaction, bill: Bill, job: str = "") -> None:
    insert(transaction, "bills", bill, "ON CONFLICT DO NOTHING")
    if bill.is_last and job:
        transaction.run("DELETE FROM accounts WHERE job = ?", (job,))


def bills_of(transaction: Transaction, owner: str, count: int) -> list[Bill]:
    """Some of those that nobody has taken; the last of an account after its others."""
    sql = "SELECT * FROM bills WHERE owner = ? ORDER BY is_last, id LIMIT ?"
    return rows_as(transaction, Bill, sql, (owner, count))


def take_bills(transaction: Transaction, owner: str, ids: list[str]) -> None:
    for bill_id in ids:
        transaction.run("DELETE FROM bills WHERE id = ? AND owner = ?", (bill_id, owner))
