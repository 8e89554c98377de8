"""API keys: made, listed, rotated, revoked, and found again. Only a digest is kept; the key itself is shown once.

psk_ID_SECRET    ID finds the record, SECRET (32 random bytes) is compared by its digest in constant time
"""

import hashlib
import hmac
import secrets
from dataclasses import astuple, dataclass, replace
from typing import Any

from penstock.errors import ConfigError
from penstock.service.edge.tokens import TokenHolder
from penstock.service.gateway.accounts import budgets
from penstock.service.gateway.accounts.money import nanodollars
from penstock.service.gateway.schema import change
from penstock.service.store.database import Database, insert, rows_as

PREFIX = "psk"
SCOPES = ("inference", "usage", "metrics")
"""What a key may be good for: asking models; reading its tenant's usage; reading the numbers of all tenants."""
_COLUMNS = "id, digest, name, tenant, scopes, models, created_at, expires_at, revoked_at"
_NOBODY = hashlib.sha256(b"").digest()


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key, without its secret."""

    key_id: str
    digest: bytes
    name: str
    tenant: str
    scopes: tuple[str, ...] = ("inference",)
    models: tuple[str, ...] = ()
    """Models it may ask; empty for all."""
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None

    def is_valid(self, unix_s: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or unix_s < self.expires_at)


def record_of(holder: TokenHolder) -> KeyRecord:
    """A signed token, as if it were a key that nobody made."""
    others = tuple(scope for scope in SCOPES[1:] if f"penstock:{scope}" in holder.words)
    key_id, scopes = f"jwt:{holder.subject}", (SCOPES[0], *others)
    return KeyRecord(key_id, b"", holder.subject, holder.tenant, scopes, expires_at=holder.expires_at)


def create_key(
    database: Database,
    *,
    name: str,
    tenant: str,
    now: float,
    scopes: tuple[str, ...] = ("inference",),
    models: tuple[str, ...] = (),
    expires_s: float | None = None,
    budget_usd: float | None = None,
    budget_period: str = "total",
) -> tuple[str, KeyRecord]:
    """The key, which is never shown again, and its record."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown:
        raise ConfigError(f"there is no scope {unknown[0]!r}; choose of {', '.join(SCOPES)}")
    if not tenant or "," in tenant or any("," in model for model in models):
        raise ConfigError("a key needs a tenant; names hold no commas")
    expires_at = None if expires_s is None else now + expires_s
    made = _enter(database, KeyRecord("", b"", name, tenant, scopes, models, now, expires_at))
    bound_key(database, made[1].key_id, budget_usd, budget_period, now)
    return made


def bound_key(database: Database, key_id: str, budget_usd: float | None, period: str, now: float) -> None:
    """What may be spent with a key; nothing changes where no sum is named."""
    if budget_usd is not None:
        budgets.set_budget(database, f"key:{key_id}", nanodollars(budget_usd), period, now)


def _enter(database: Database, wanted: KeyRecord) -> tuple[str, KeyRecord]:
    """A key like this one, with a name and a secret of its own."""
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    record = replace(wanted, key_id=key_id, digest=_digest(secret.encode()))
    values = [",".join(one) if isinstance(one, tuple) else one for one in astuple(record)]
    change(database, lambda t: insert(t, f"keys ({_COLUMNS})", values))
    return f"{PREFIX}_{key_id}_{secret}", record


def list_keys(database: Database) -> list[KeyRecord]:
    return database.read(lambda t: rows_as(t, _record, f"SELECT {_COLUMNS} FROM keys ORDER BY created_at")).result()


def revoke_key(database: Database, key_id: str, now: float) -> None:
    """It is refused from now on, by every gateway within a second."""
    sql = "UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
    if not change(database, lambda t: t.run(sql, (now, key_id))):
        raise ConfigError(f"there is no valid key {key_id!r}; penstock keys list shows them")


def rotate_key(database: Database, key_id: str, now: float, grace_s: float) -> tuple[str, KeyRecord]:
    """A new key like it; the old one lasts for the grace time."""
    old = next((record for record in list_keys(database) if record.key_id == key_id), None)
    if old is None or not old.is_valid(now):
        raise ConfigError(f"there is no valid key {key_id!r}; penstock keys list shows them")
    made = _enter(database, replace(old, created_at=now))
    end = now + grace_s if old.expires_at is None else min(old.expires_at, now + grace_s)
    change(database, lambda t: t.run("UPDATE keys SET expires_at = ? WHERE id = ?", (end, key_id)))
    return made


class KeyRing:
    """All keys as of the last look at the database, found without one."""

    def __init__(self, records: list[KeyRecord]) -> None:
        self._by_id = {record.key_id: record for record in records}

    def find(self, key: bytes, unix_s: float) -> KeyRecord | None:
        """Whose key it is; None if it is unknown, expired or revoked. An unknown id costs as much time as a known one."""
        prefix, _, rest = key.partition(b"_")
        key_id, _, secret = rest.partition(b"_")
        record = self._by_id.get(key_id.decode("latin-1"))
        digest = record.digest if record is not None else _NOBODY
        is_same = hmac.compare_digest(digest, _digest(secret))
        if not is_same or record is None or prefix != PREFIX.encode() or not record.is_valid(unix_s):
            return None
        return record


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(b"penstock.key:" + secret).digest()


def _record(key_id: str, digest: bytes, name: str, tenant: str, scopes: str, models: str, *times: Any) -> KeyRecord:
    return KeyRecord(key_id, bytes(digest), name, tenant, _listed(scopes), _listed(models), *times)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
