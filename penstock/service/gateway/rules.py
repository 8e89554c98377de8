"""Rules that operators set while the gateway runs: tiers, tenants, prices and names of models, kept in the database.

They stand beside those of the file and before them, in every gateway of the database. A rule is checked with all others before
it is kept, so that a gateway never meets a wrong one.
"""

from typing import Any

import msgspec

from penstock.errors import ConfigError
from penstock.service.gateway.schema import change
from penstock.service.gateway.settings import GatewaySettings, settings_of
from penstock.service.store.database import Database, Transaction, insert

KINDS = ("tiers", "tenants", "prices", "models")

Rules = dict[str, dict[str, Any]]


def rules_of(transaction: Transaction) -> Rules:
    found: Rules = {kind: {} for kind in KINDS}
    for kind, name, value in transaction.rows("SELECT kind, name, value FROM rules ORDER BY kind, name"):
        found.setdefault(str(kind), {})[str(name)] = msgspec.json.decode(str(value))
    return found


def merged(base: GatewaySettings, rules: Rules) -> GatewaySettings:
    """Raises ConfigError for rules that do not go together."""
    raw = msgspec.to_builtins(base)
    for kind in KINDS:
        raw[kind] = dict(raw[kind]) | rules.get(kind, {})
    return settings_of(raw, "the rule cannot be read")


def put_rule(database: Database, base: GatewaySettings, kind: str, name: str, value: Any) -> None:
    _check_kind(kind, name)

    def work(transaction: Transaction) -> None:
        rules = rules_of(transaction)
        rules[kind][name] = value
        merged(base, rules)
        rest = "ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value"
        insert(transaction, "rules (kind, name, value)", (kind, name, msgspec.json.encode(value).decode()), rest)

    change(database, work)


def delete_rule(database: Database, base: GatewaySettings, kind: str, name: str) -> None:
    """What the file says of it, if anything, holds again."""
    _check_kind(kind, name)

    def work(transaction: Transaction) -> None:
        if not transaction.run("DELETE FROM rules WHERE kind = ? AND name = ?", (kind, name)):
            raise ConfigError(f"no rule for {name!r} under {kind} was set here; those of the file are changed there")
        merged(base, rules_of(transaction))

    change(database, work)


def _check_kind(kind: str, name: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"there are no rules of the kind {kind!r}; choose of {', '.join(KINDS)}")
    if not 0 < len(name) <= 200 or not name.isprintable() or "," in name:
        raise ConfigError("a name has 1 to 200 printable letters and no comma")
