"""Responses and conversations as they are kept: tables, and the functions of a transaction that read and write them."""

from typing import NamedTuple

from penstock.service.store.database import Schema, Transaction, insert, row_as, rows_as

SCHEMA = Schema(
    "responses",
    (
        (
            "CREATE TABLE responses (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created_s BIGINT NOT NULL, "
            "status TEXT NOT NULL, value TEXT NOT NULL, input TEXT NOT NULL, body TEXT NOT NULL)",
            "CREATE INDEX responses_by_age ON responses (created_s)",
            "CREATE TABLE conversations (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created_s BIGINT NOT NULL, "
            "metadata TEXT NOT NULL)",
            "CREATE TABLE conversation_items (conversation TEXT NOT NULL, place BIGINT NOT NULL, id TEXT NOT NULL, "
            "value TEXT NOT NULL, PRIMARY KEY (conversation, place))",
        ),
    ),
)

UNFINISHED = ("queued", "in_progress")


class ResponseRow(NamedTuple):
    id: str
    tenant: str
    created_s: int
    status: str
    value: str
    """The response as JSON."""
    input: str
    """All items it was made from, as JSON."""
    body: str
    """What was asked, while a background response is not over; else empty."""


class ConversationRow(NamedTuple):
    id: str
    tenant: str
    created_s: int
    metadata: str


def put_response(transaction: Transaction, row: ResponseRow) -> None:
    changes = "status = excluded.status, value = excluded.value, body = excluded.body"
    rest = f"ON CONFLICT (id) DO UPDATE SET {changes} WHERE responses.tenant = excluded.tenant"
    insert(transaction, "responses", row, rest)


def response_of(transaction: Transaction, response_id: str, tenant: str) -> ResponseRow | None:
    sql = "SELECT * FROM responses WHERE id = ? AND tenant = ?"
    return row_as(transaction, ResponseRow, sql, (response_id, tenant))


def delete_response(transaction: Transaction, response_id: str, tenant: str) -> bool:
    return bool(transaction.run("DELETE FROM responses WHERE id = ? AND tenant = ?", (response_id, tenant)))


def unfinished_responses(transaction: Transaction) -> list[ResponseRow]:
    """Oldest first."""
    sql = "SELECT * FROM responses WHERE status IN (?, ?) AND body <> '' ORDER BY created_s, id"
    return rows_as(transaction, ResponseRow, sql, UNFINISHED)


def forget_responses(transaction: Transaction, before_s: float) -> int:
    """Times are kept in whole seconds: those of the same second are old enough."""
    return transaction.run("DELETE FROM responses WHERE created_s <= ? AND body = ''", (int(before_s),))


# Conversations


def put_conversation(transaction: Transaction, row: ConversationRow) -> None:
    change = "metadata = excluded.metadata WHERE conversations.tenant = excluded.tenant"
    insert(transaction, "conversations", row, f"ON CONFLICT (id) DO UPDATE SET {change}")


def conversation_of(transaction: Transaction, conversation_id: str, tenant: str) -> ConversationRow | None:
    sql = "SELECT * FROM conversations WHERE id = ? AND tenant = ?"
    return row_as(transaction, ConversationRow, sql, (conversation_id, tenant))


def delete_conversation(transaction: Transaction, conversation_id: str) -> None:
    transaction.run("DELETE FROM conversation_items WHERE conversation = ?", (conversation_id,))
    transaction.run("DELETE FROM conversations WHERE id = ?", (conversation_id,))


def add_items(transaction: Transaction, conversation_id: str, items: list[tuple[str, str]]) -> None:
    """(id, JSON) of items, after those there are."""
    rows = transaction.rows(
        "SELECT COALESCE(MAX(place), 0) FROM conversation_items WHERE conversation = ?", (conversation_id,)
    )
    for place, (item_id, value) in enumerate(items, int(rows[0][0]) + 1):
        insert(transaction, "conversation_items", (conversation_id, place, item_id, value))


def items_of(transaction: Transaction, conversation_id: str) -> list[str]:
    sql = "SELECT value FROM conversation_items WHERE conversation = ? ORDER BY place"
    return rows_as(transaction, str, sql, (conversation_id,))


def delete_item(transaction: Transaction, conversation_id: str, item_id: str) -> bool:
    return bool(
        transaction.run("DELETE FROM conversation_items WHERE conversation = ? AND id = ?", (conversation_id, item_id))
    )
