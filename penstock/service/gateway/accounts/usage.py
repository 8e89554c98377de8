"""What was used: a record a request, without a word of what was said, and sums over them."""

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.errors import ConfigError
from penstock.service.gateway.accounts.money import NANO
from penstock.service.store.database import Database, Transaction, insert

GROUPS = {"key": "key_id", "tenant": "tenant", "model": "model", "tag": "tag", "day": "day"}
_SUMS = "COUNT(*), SUM(num_prompt), SUM(num_cached), SUM(num_output), SUM(cost)"


class UsageRecord(NamedTuple):
    at: float
    request_id: str
    key_id: str
    tenant: str
    model: str
    tag: str
    num_prompt: int
    num_cached: int
    num_output: int
    cost: int
    """Nanodollars."""
    outcome: str
    id: str = ""
    """Under which it is written once."""


class UsageSum(NamedTuple):
    group: tuple[str, ...]
    num_requests: int
    num_prompt: int
    num_cached: int
    num_output: int
    cost: int

    def row(self, by: Sequence[str]) -> dict[str, Any]:
        """As clients and operators read it; `by` names its group."""
        counts = {name: value for name, value in self._asdict().items() if name.startswith("num_")}
        return dict(zip(by, self.group, strict=True)) | counts | {"cost_usd": self.cost / NANO}


_COLUMNS = ", ".join(UsageRecord._fields)


def insert_record(transaction: Transaction, record: UsageRecord) -> bool:
    """False if it is there already."""
    values = (*record[:-1], record.id or secrets.token_hex(8))
    return bool(insert(transaction, f"usage_records ({_COLUMNS})", values, "ON CONFLICT DO NOTHING"))


def usage_sums(database: Database, by: Sequence[str], since: float = 0.0, tenant: str = "") -> list[UsageSum]:
    """Sums by key, tenant, model, tag or day (UTC), the dearest first."""
    unknown = [name for name in by if name not in GROUPS]
    if unknown:
        raise ConfigError(f"usage is not kept by {unknown[0]!r}; choose of {', '.join(GROUPS)}")
    columns = [GROUPS[name] for name in by]
    source = "SELECT *, CAST(at AS BIGINT) / 86400 AS day FROM usage_records WHERE at >= ? AND ? IN ('', tenant)"
    listed = ", ".join(columns)
    grouped = f" GROUP BY {listed}" if columns else ""
    sql = f"SELECT {listed + ', ' if listed else ''}{_SUMS} FROM ({source}) AS records{grouped}"
    rows = database.read(lambda t: t.rows(sql, (since, tenant))).result()
    found = [
        UsageSum(tuple(str(one) for one in row[: len(columns)]), *(int(one or 0) for one in row[len(columns) :]))
        for row in rows
    ]
    return sorted(found, key=lambda one: (-one.cost, -one.num_requests, one.group))
