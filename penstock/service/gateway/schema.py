"""The gateway's tables, and a number that grows with every change of keys, budgets and rules: gateways look at all of them only
when there is something new, and ask for the number several times a second.
"""

from penstock.service.store.database import Database, Schema, T, Transaction, Work, insert

GATEWAY = Schema(
    "gateway",
    (
        (
            "CREATE TABLE keys (id TEXT PRIMARY KEY, digest BLOB NOT NULL, name TEXT NOT NULL, tenant TEXT NOT NULL, "
            "scopes TEXT NOT NULL, models TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL, "
            "expires_at DOUBLE PRECISION, revoked_at DOUBLE PRECISION)",
            "CREATE TABLE budgets (scope TEXT PRIMARY KEY, amount BIGINT NOT NULL, spent BIGINT NOT NULL, "
            "reserved BIGINT NOT NULL, period TEXT NOT NULL, period_start TEXT NOT NULL)",
            "CREATE TABLE reservations (id TEXT PRIMARY KEY, gateway TEXT NOT NULL, scopes TEXT NOT NULL, "
            "amount BIGINT NOT NULL)",
            "CREATE TABLE gateways (id TEXT PRIMARY KEY, seen_at DOUBLE PRECISION NOT NULL)",
            "CREATE TABLE usage_records (at DOUBLE PRECISION NOT NULL, request_id TEXT NOT NULL, key_id TEXT NOT NULL, "
            "tenant TEXT NOT NULL, model TEXT NOT NULL, tag TEXT NOT NULL, num_prompt BIGINT NOT NULL, "
            "num_cached BIGINT NOT NULL, num_output BIGINT NOT NULL, cost BIGINT NOT NULL, outcome TEXT NOT NULL)",
            "CREATE INDEX usage_records_at ON usage_records (at)",
            "CREATE TABLE audit (at DOUBLE PRECISION NOT NULL, who TEXT NOT NULL, action TEXT NOT NULL, about TEXT NOT NULL)",
        ),
        (
            "ALTER TABLE usage_records ADD COLUMN id TEXT",
            "CREATE UNIQUE INDEX usage_records_id ON usage_records (id)",
            "CREATE TABLE later (account TEXT PRIMARY KEY, reservation TEXT NOT NULL, scopes TEXT NOT NULL, "
            "key_id TEXT NOT NULL, tenant TEXT NOT NULL, request_id TEXT NOT NULL, tag TEXT NOT NULL, tier TEXT NOT NULL, "
            "expires_at DOUBLE PRECISION NOT NULL)",
            "CREATE TABLE changes (name TEXT PRIMARY KEY, number BIGINT NOT NULL)",
            "CREATE TABLE rules (kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, name))",
        ),
    ),
)


def change(database: Database, work: Work[T]) -> T:
    """Done once it returns, and gateways look again. Raises StoreError, and whatever the work raises."""

    def noted(transaction: Transaction) -> T:
        rest = "ON CONFLICT (name) DO UPDATE SET number = changes.number + 1"
        insert(transaction, "changes (name, number)", ("all", 1), rest)
        return work(transaction)

    return database.write(noted).result()


def change_number(transaction: Transaction) -> int:
    rows = transaction.rows("SELECT number FROM changes WHERE name = 'all'")
    return int(rows[0][0]) if rows else 0
