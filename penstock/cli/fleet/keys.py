"""`penstock keys`: API keys of a gateway, made, listed, rotated and revoked."""

import getpass
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.errors import ConfigError
from penstock.fields import setting

UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,6})([mhd])")


@dataclass(frozen=True, slots=True)
class Config:
    """Make, list, rotate or revoke API keys; `audit` lists what operators did.

    A key is shown once, when it is made; only a digest of it is kept.
    """

    action: Literal["create", "list", "rotate", "revoke", "audit"] = field(metadata={"positional": True})
    """What to do"""
    gateway: Path = field(metadata={"metavar": "FILE"})
    """The gateway's settings, which name its database"""
    key_id: str = ""
    """Which key: the part between psk_ and the next _"""
    tenant: str = ""
    """Whose key it is"""
    name: str = ""
    """What it is for"""
    scope: tuple[str, ...] = ("inference",)
    """What it is good for: inference, usage, metrics"""
    model: tuple[str, ...] = ()
    """Model it may ask; without one, all"""
    expires: str = ""
    """How long it lasts, as 90m, 12h or 30d"""
    grace: str = setting("1h")
    """How long a rotated key still lasts"""
    budget_usd: float | None = None
    """Dollars that may be spent with it"""
    budget_period: Literal["total", "day", "month"] = setting("total")
    """In what time"""


def run(config: Config) -> int:
    from penstock.assembly.fleet.gateway import open_gateway_database
    from penstock.service.gateway import audit, keys
    from penstock.service.gateway.settings import read_settings

    database = open_gateway_database(read_settings(config.gateway))
    now = time.time()
    try:
        if config.action == "list":
            for record in keys.list_keys(database):
                state = "valid" if record.is_valid(now) else "revoked" if record.revoked_at else "expired"
                scopes = ",".join(record.scopes)
                print(f"{record.key_id}  {state:8}  {record.tenant:16}  {scopes:16}  {record.name}")
        elif config.action == "revoke":
            keys.revoke_key(database, config.key_id, now)
            audit.write_audit(database, audit.AuditEntry(now, _who(), "revoke key", config.key_id))
            print(f"{config.key_id} is refused from now on")
        elif config.action == "audit":
            for entry in audit.audit_entries(database):
                stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.at))
                print(f"{stamp}  {entry.who:16}  {entry.action:12}  {entry.about}")
        else:
            if config.action == "rotate":
                key, record = keys.rotate_key(database, config.key_id, now, seconds(config.grace))
            else:
                key, record = keys.create_key(
                    database,
                    name=config.name,
                    tenant=config.tenant,
                    now=now,
                    scopes=config.scope,
                    models=config.model,
                    expires_s=seconds(config.expires) if config.expires else None,
                )
            keys.bound_key(database, record.key_id, config.budget_usd, config.budget_period, now)
            about = f"{record.key_id} of {record.tenant}"
            audit.write_audit(database, audit.AuditEntry(now, _who(), f"{config.action} key", about))
            print(key)
    finally:
        database.close()
    return 0


def _who() -> str:
    """Who runs the command."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "nobody"


def seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if not found:
        raise ConfigError(f"{text!r} is no time; write 90m, 12h or 30d")
    return int(found.group(1)) * UNITS[found.group(2)]
