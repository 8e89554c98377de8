"""Responses and conversations as they are kept: tables, and the functions of a transaction that read and write them."""

from typing import NamedTuple

from penstock.service.store.database import Schema, Transaction

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
    transaction.run(
        "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "status = excluded.status, value = excluded.value, body = excluded.body "
        "WHERE responses.tenant = excluded.tenant",
        row,
    )


def response_of(transaction: Transaction, response_id: str, tenant: str) -> ResponseRow | None:
    rows = transaction.rows("SELECT * FROM responses WHERE id = ? AND tenant = ?", (response_id, tenant))
    return ResponseRow(*rows[0]) if rows else None


def delete_response(transaction: Transaction, response_id: str, tenant: str) -> bool:
    return bool(transaction.run("DELETE FROM responses WHERE id = ? AND tenant = ?", (response_id, tenant)))


def unfinished_responses(transaction: Transaction) -> list[ResponseRow]:
    """Oldest first."""
    rows = transaction.rows(
        "SELECT * FROM responses WHERE status IN (?, ?) AND body <> '' ORDER BY created_s, id", UNFINISHED
    )
    return [ResponseRow(*row) for row in rows]


def forget_responses(transaction: Transaction, before_s: float) -> int:
    """Times are kept in whole seconds: those of the same second are old enough."""
    return transaction.run("DELETE FROM responses WHERE created_s <= ? AND body = ''", (int(before_s),))


# Conversations


def put_conversation(transaction: Transaction, row: ConversationRow) -> None:
    transaction.run(
        "INSERT INTO conversations VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET metadata = excluded.metadata "
        "WHERE conversations.tenant = excluded.tenant",
        row,
    )


def conversation_of(transaction: Transaction, conversation_id: str, tenant: str) -> ConversationRow | None:
    rows = transaction.rows("SELECT * FROM conversations WHERE id = ? AND tenant = ?", (conversation_id, tenant))
    return ConversationRow(*rows[0]) if rows else None


def delete_conversation(transaction: Transaction, conversation_id: str) -> None:
    transaction.run("DELETE FROM conversation_items WHERE conversation = ?", (conversation_id,))
    transaction.run("DELETE FROM conversations WHERE id = ?", (conversation_id,))


def add_items(transaction: Transaction, conversation_id: str, items: list[tuple[str, str]]) -> None:
    """(id, JSON) of items, after those there are."""
    rows = transaction.rows(
        "SELECT COALESCE(MAX(place), 0) FROM conversation_items WHERE conversation = ?", (conversation_id,)
    )
    for place, (item_id, value) in enumerate(items, int(rows[0][0]) + 1):
        transaction.run("INSERT INTO conversation_items VALUES (?, ?, ?, ?)", (conversation_id, place, item_id, value))


def items_of(transaction: Transaction, conversation_id: str) -> list[str]:
    rows = transaction.rows(
        "SELECT value FROM conversation_items WHERE conversation = ? ORDER BY place", (conversation_id,)
    )
    return [str(row[0]) for row in rows]


def delete_item(transaction: Transaction, conversation_id: str, item_id: str) -> bool:
    return bool(
        transaction.run("DELETE FROM conversation_items WHERE conversation = ? AND id = ?", (conversation_id, item_id))
    )
