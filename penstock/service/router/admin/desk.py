"""What an operator may do to a gateway while it runs: a row a route. Blocks on the database; knows no connection."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from penstock.errors import ConfigError
from penstock.service.edge.refusal import Refusal
from penstock.service.gateway import audit, keys, rules
from penstock.service.gateway.accounts import budgets
from penstock.service.gateway.accounts.money import NANO, nanodollars
from penstock.service.gateway.accounts.usage import GROUPS, usage_sums
from penstock.service.gateway.gateway import Gateway


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A key to be made."""

    tenant: str
    name: str = ""
    scopes: tuple[str, ...] = ("inference",)
    models: tuple[str, ...] = ()
    expires_s: float | None = None
    budget_usd: float | None = None
    budget_period: str = "total"


class RotateBody(msgspec.Struct, forbid_unknown_fields=True):
    """How long the old key still lasts."""

    grace_s: float = 3600.0


class BudgetBody(msgspec.Struct, forbid_unknown_fields=True):
    amount_usd: float
    period: str = "total"


class RuleBody(msgspec.Struct):
    """A tier, a tenant, a price or a name of models, as under its heading of the gateway's file."""


class DeskCall(NamedTuple):
    gateway: Gateway
    names: tuple[str, ...]
    body: Any
    by: tuple[str, ...]
    """What usage is summed by."""


def list_keys(asked: DeskCall) -> Any:
    now = time.time()
    return [
        {"id": one.key_id, "is_valid": one.is_valid(now)}
        | {name: getattr(one, name) for name in ("name", "tenant", "scopes", "models", "expires_at")}
        for one in keys.list_keys(asked.gateway.database)
    ]


def create_key(asked: DeskCall) -> Any:
    key, record = keys.create_key(asked.gateway.database, now=time.time(), **msgspec.structs.asdict(asked.body))
    return {"key": key, "id": record.key_id}


def rotate_key(asked: DeskCall) -> Any:
    key, record = keys.rotate_key(asked.gateway.database, asked.names[0], time.time(), asked.body.grace_s)
    return {"key": key, "id": record.key_id}


def revoke_key(asked: DeskCall) -> None:
    keys.revoke_key(asked.gateway.database, asked.names[0], time.time())


def list_budgets(asked: DeskCall) -> Any:
    return [
        {"scope": one.scope, "period": one.period}
        | {f"{name}_usd": getattr(one, name) / NANO for name in ("amount", "spent", "reserved")}
        for one in budgets.budgets(asked.gateway.database)
    ]


def set_budget(asked: DeskCall) -> None:
    scope = asked.names[0]
    if not scope.startswith(("tenant:", "key:")):
        raise ConfigError("a budget is of tenant:NAME or key:ID")
    if not 0.0 <= asked.body.amount_usd < 1e9:
        raise ConfigError("amount_usd is a number of dollars, 0 or more")
    amount = nanodollars(asked.body.amount_usd)
    budgets.set_budget(asked.gateway.database, scope, amount, asked.body.period, time.time())


def delete_budget(asked: DeskCall) -> None:
    budgets.delete_budget(asked.gateway.database, asked.names[0])


def list_rules(asked: DeskCall) -> Any:
    settings = msgspec.to_builtins(asked.gateway.settings)
    own = asked.gateway.database.read(rules.rules_of).result()
    return {kind: {"holds": settings[kind], "set_here": sorted(own.get(kind, {}))} for kind in rules.KINDS}


def put_rule(asked: DeskCall) -> None:
    kind, name = asked.names
    rules.put_rule(asked.gateway.database, asked.gateway.book.base, kind, name, asked.body)


def delete_rule(asked: DeskCall) -> None:
    kind, name = asked.names
    rules.delete_rule(asked.gateway.database, asked.gateway.book.base, kind, name)


def usage(asked: DeskCall) -> Any:
    by = asked.by or ("tenant", "model")
    return [one.row(by) for one in usage_sums(asked.gateway.database, by)]


def list_audit(asked: DeskCall) -> Any:
    return [one._asdict() for one in audit.audit_entries(asked.gateway.database)]


class DeskRoute(NamedTuple):
    method: str
    path: str
    """{name} stands for one word, percent-encoded."""
    handler: Callable[[DeskCall], Any]
    """None where nothing but that it is done is told."""
    help: str
    body: type | None = None
    is_noted: bool = False


ROUTES = (
    DeskRoute("GET", "/keys", list_keys, "Keys, without their secrets"),
    DeskRoute("POST", "/keys", create_key, "Make a key, shown this once", KeyBody, True),
    DeskRoute("POST", "/keys/{id}/rotate", rotate_key, "A new key like it", RotateBody, True),
    DeskRoute("DELETE", "/keys/{id}", revoke_key, "Refuse it from now on", None, True),
    DeskRoute("GET", "/budgets", list_budgets, "What may be spent, and what is"),
    DeskRoute("PUT", "/budgets/{scope}", set_budget, "Set a budget of tenant:NAME or key:ID", BudgetBody, True),
    DeskRoute("DELETE", "/budgets/{scope}", delete_budget, "No bound any more", None, True),
    DeskRoute("GET", "/rules", list_rules, "Tiers, tenants, prices and names of models that hold now"),
    DeskRoute("PUT", "/rules/{kind}/{name}", put_rule, "Set one of tiers, tenants, prices, models", RuleBody, True),
    DeskRoute("DELETE", "/rules/{kind}/{name}", delete_rule, "What the file says holds again", None, True),
    DeskRoute("GET", "/usage", usage, f"Sums of usage, ?by= of {', '.join(GROUPS)}"),
    DeskRoute("GET", "/audit", list_audit, "What operators did, newest first"),
)


def find(method: str, words: tuple[str, ...]) -> tuple[DeskRoute, tuple[str, ...]] | None:
    for route in ROUTES:
        parts = route.path.strip("/").split("/")
        if route.method == method and len(parts) == len(words):
            names = tuple(word for part, word in zip(parts, words) if part.startswith("{"))
            if all(part == word or part.startswith("{") for part, word in zip(parts, words)):
                return route, names
    return None


def read_body(route: DeskRoute, data: bytes) -> Any:
    if route.body is None:
        return None
    try:
        if route.body is RuleBody:
            return msgspec.json.decode(data, type=dict[str, Any])
        return msgspec.json.decode(data or b"{}", type=route.body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal(400, f"the body cannot be read: {error}", code="invalid_json") from None
