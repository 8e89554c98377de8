"""Files and batches as they are kept: tables, and the functions of a transaction that read and write them.

A batch's answers are rows until all of them are there; each is written once, in the transaction that counts it, so that
stopping at any moment loses none and repeats none.
"""

from typing import NamedTuple

from penstock.service.store.database import Schema, Transaction, insert, row_as, rows_as

SCHEMA = Schema(
    "jobs",
    (
        (
            "CREATE TABLE files (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL, "
            "num_bytes BIGINT NOT NULL, created_s BIGINT NOT NULL, expires_s BIGINT)",
            "CREATE INDEX files_by_age ON files (tenant, created_s)",
            "CREATE TABLE batches (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL, created_s BIGINT NOT NULL, "
            "input_file TEXT NOT NULL, endpoint TEXT NOT NULL, num_total BIGINT NOT NULL, num_completed BIGINT NOT NULL, "
            "num_failed BIGINT NOT NULL, num_input BIGINT NOT NULL, num_cached BIGINT NOT NULL, num_output BIGINT NOT NULL, "
            "num_reasoning BIGINT NOT NULL, value TEXT NOT NULL)",
            "CREATE INDEX batches_by_age ON batches (tenant, created_s)",
            "CREATE TABLE batch_lines (batch TEXT NOT NULL, line BIGINT NOT NULL, is_error BIGINT NOT NULL, "
            "answer BLOB NOT NULL, PRIMARY KEY (batch, line))",
        ),
    ),
)

OPEN = ("validating", "in_progress", "finalizing", "cancelling")
"""States that a batch does not stay in."""


class FileRow(NamedTuple):
    id: str
    tenant: str
    filename: str
    purpose: str
    num_bytes: int
    created_s: int
    expires_s: int | None


class BatchRow(NamedTuple):
    id: str
    tenant: str
    status: str
    created_s: int
    input_file: str
    endpoint: str
    num_total: int
    num_completed: int
    num_failed: int
    num_input: int
    num_cached: int
    num_output: int
    num_reasoning: int
    value: str
    """Everything else a client sees of it, as JSON."""


class LineUsage(NamedTuple):
    num_input: int = 0
    num_cached: int = 0
    num_output: int = 0
    num_reasoning: int = 0


# Files


def add_file(transaction: Transaction, row: FileRow) -> None:
    insert(transaction, "files", row)


def file_of(transaction: Transaction, file_id: str, tenant: str) -> FileRow | None:
    return row_as(transaction, FileRow, "SELECT * FROM files WHERE id = ? AND tenant = ?", (file_id, tenant))


def files_of(transaction: Transaction, tenant: str) -> list[FileRow]:
    """Newest first."""
    sql = "SELECT * FROM files WHERE tenant = ? ORDER BY created_s DESC, id DESC"
    return rows_as(transaction, FileRow, sql, (tenant,))


class KeptFiles(NamedTuple):
    num_files: int
    num_bytes: int


def kept_by(transaction: Transaction, tenant: str) -> KeptFiles:
    rows = transaction.rows("SELECT COUNT(*), SUM(num_bytes) FROM files WHERE tenant = ?", (tenant,))
    return KeptFiles(int(rows[0][0]), int(rows[0][1] or 0))


def all_file_ids(transaction: Transaction) -> set[str]:
    return set(rows_as(transaction, str, "SELECT id FROM files"))


def delete_file(transaction: Transaction, file_id: str) -> None:
    transaction.run("DELETE FROM files WHERE id = ?", (file_id,))


def expired_files(transaction: Transaction, now_s: float) -> list[str]:
    return rows_as(transaction, str, "SELECT id FROM files WHERE expires_s <= ?", (int(now_s),))


# Batches


def add_batch(transaction: Transaction, row: BatchRow) -> None:
    insert(transaction, "batches", row)


def batch_of(transaction: Transaction, batch_id: str, tenant: str | None = None) -> BatchRow | None:
    row = row_as(transaction, BatchRow, "SELECT * FROM batches WHERE id = ?", (batch_id,))
    return row if row is not None and tenant in (None, row.tenant) else None


def batches_of(transaction: Transaction, tenant: str) -> list[BatchRow]:
    """Newest first."""
    sql = "SELECT * FROM batches WHERE tenant = ? ORDER BY created_s DESC, id DESC"
    return rows_as(transaction, BatchRow, sql, (tenant,))


def open_batches(transaction: Transaction) -> list[BatchRow]:
    """Oldest first."""
    marks = ", ".join("?" * len(OPEN))
    sql = f"SELECT * FROM batches WHERE status IN ({marks}) ORDER BY created_s, id"
    return rows_as(transaction, BatchRow, sql, OPEN)


def set_batch(transaction: Transaction, batch_id: str, status: str, value: str, num_total: int | None = None) -> None:
    transaction.run("UPDATE batches SET status = ?, value = ? WHERE id = ?", (status, value, batch_id))
    if num_total is not None:
        transaction.run("UPDATE batches SET num_total = ? WHERE id = ?", (num_total, batch_id))


def add_line(
    transaction: Transaction, batch_id: str, line: int, answer: bytes, usage: LineUsage, *, is_error: bool
) -> bool:
    """Keep the answer to a line, and count it. False if it has one already: the first stands."""
    if not insert(transaction, "batch_lines", (batch_id, line, int(is_error), answer), "ON CONFLICT DO NOTHING"):
        return False
    transaction.run(
        "UPDATE batches SET num_completed = num_completed + ?, num_failed = num_failed + ?, num_input = num_input + ?, "
        "num_cached = num_cached + ?, num_output = num_output + ?, num_reasoning = num_reasoning + ? WHERE id = ?",
        (int(not is_error), int(is_error), *usage, batch_id),
    )
    return True


def answered_lines(transaction: Transaction, batch_id: str) -> set[int]:
    return set(rows_as(transaction, int, "SELECT line FROM batch_lines WHERE batch = ?", (batch_id,)))


def answers_after(
    transaction: Transaction, batch_id: str, line: int, count: int, *, is_error: bool
) -> list[tuple[int, bytes]]:
    """Some answers in the order of their lines."""
    sql = "SELECT line, answer FROM batch_lines WHERE batch = ? AND is_error = ? AND line > ? ORDER BY line LIMIT ?"
    rows = transaction.rows(sql, (batch_id, int(is_error), line, count))
    return [(int(number), bytes(answer)) for number, answer in rows]


def drop_lines(transaction: Transaction, batch_id: str) -> None:
    transaction.run("DELETE FROM batch_lines WHERE batch = ?", (batch_id,))
