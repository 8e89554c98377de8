"""What operators did, written down: keys made and revoked, replicas added, drained and removed."""

from concurrent.futures import Future
from typing import NamedTuple

from penstock.service.store.database import Database, insert, rows_as


class AuditEntry(NamedTuple):
    at: float
    """Seconds of the world's clock."""
    who: str
    action: str
    about: str


def write_audit(database: Database, entry: AuditEntry) -> "Future[int]":
    return database.write(lambda t: insert(t, "audit (at, who, action, about)", entry))


def audit_entries(database: Database, limit: int = 100) -> list[AuditEntry]:
    """The latest, newest first."""
    sql = "SELECT at, who, action, about FROM audit ORDER BY at DESC LIMIT ?"
    return database.read(lambda t: rows_as(t, AuditEntry, sql, (limit,))).result()
