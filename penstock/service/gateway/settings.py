"""The gateway's file: tiers, tenants, prices, names of models and outside APIs. Read again when it changes, checked whole.

database = "gateway.db"            # or postgresql://...
[tiers.free]
requests_per_minute = 60
[tenants.acme]
tier = "free"
budget_usd = 10.0
budget_period = "month"
[prices."smollm2-135m"]
input = 0.1                        # dollars a million tokens
output = 0.4
[models.chat]
split = { "smollm2-135m" = 9, "smollm2-360m" = 1 }
fallback = ["smollm2-360m", "outside:big"]
[outside.big]
url = "https://api.example.com/v1"
key_variable = "BIG_KEY"
model = "big-1"
"""

import tomllib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.errors import ConfigError
from penstock.service.edge.tokens import JwtSettings
from penstock.service.gateway.accounts.money import Price
from penstock.service.gateway.limits import Tier

OUTSIDE = "outside:"
ANY_MODEL = "*"
"""Under [prices]: models that have no price of their own."""


class TenantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tier: str = "default"
    budget_usd: float | None = None
    budget_period: str = "month"
    models: tuple[str, ...] = ()
    """Models it may ask; empty for all."""
    caches_answers: bool = False
    """Equal questions may get the same answer again."""
    overflows: bool = False
    """Its requests may leave for outside APIs."""


class CascadeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A small model first, a larger one where the small one was unsure."""

    first: str
    then: str
    min_logprob: float = -0.7
    """Mean log probability of a token below which the first answer is not trusted."""


class AliasSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    split: Mapping[str, float] = {}
    """Models and their shares."""
    fallback: tuple[str, ...] = ()
    """Asked in turn when the one before cannot answer."""
    cascade: CascadeSettings | None = None


class OutsideSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    model: str
    key_variable: str = ""
    """Environment variable that holds its key."""


class GuardrailSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service of the operator's that judges what is asked and answered."""

    before: str = ""
    """Address that is asked before a model is; empty for none"""
    after: str = ""
    """Address that is asked before a client reads an answer, which is held until then; empty for none"""
    timeout_s: float = 2.0
    on_failure: Literal["refuse", "pass"] = "refuse"
    """What becomes of a request where the service does not answer"""


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    database: str = "penstock-gateway.db"
    tiers: Mapping[str, dict[str, int]] = {}
    tenants: Mapping[str, TenantSettings] = {}
    prices: Mapping[str, Price] = {}
    models: Mapping[str, AliasSettings] = {}
    outside: Mapping[str, OutsideSettings] = {}
    jwt: JwtSettings | None = None
    guardrails: GuardrailSettings | None = None
    max_pending: int = 256
    """Requests a replica may have; the share of it in use is its load."""
    max_wait_s: float = 10.0
    """Longest predicted wait for a first token that one wants."""
    cache_mib: int = 64
    """Memory for answers that may be given again."""
    cache_s: float = 300.0
    """How long one may be."""
    journal: str = ""
    """File for usage that the database has not taken; empty: beside an SQLite database, else penstock-gateway.journal"""
    unbounded_tokens: int = 4096
    """Tokens of answer set aside for a request that asks for no bound; its answer ends there."""

    def tier(self, name: str) -> Tier:
        fields = self.tiers.get(name)
        if fields is None:
            if name != "default":
                raise ConfigError(f"there is no tier {name!r}; write it under [tiers.{name}]")
            return Tier()
        try:
            return Tier(**fields)
        except TypeError as error:
            raise ConfigError(f"the tier {name!r} has a field that no tier has: {error}") from None

    def price(self, model: str) -> Price | None:
        """None for a model that has no price, where there is none for all others either."""
        return self.prices.get(model) or self.prices.get(ANY_MODEL)

    def cost(self, model: str, num_prompt: int, num_cached: int, num_output: int, tier: str) -> int:
        """Nanodollars; what has no price costs as much as the dearest."""
        return (self.price(model) or self.dearest).cost(num_prompt, num_cached, num_output, tier)

    @property
    def dearest(self) -> Price:
        """No model of ours costs more."""
        prices = self.prices.values()
        most = {name: max((getattr(one, name) for one in prices), default=0.0) for name in ("input", "output")}
        return Price(**most, cached=None)

    @property
    def priorities(self) -> tuple[int, ...]:
        return tuple(sorted({self.tier(name).priority for name in self.tiers} | {0}))


def read_settings(path: Path) -> GatewaySettings:
    """Raises ConfigError, naming what is wrong where."""
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the gateway's file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return settings_of(raw, str(path))


def settings_of(raw: dict[str, Any], source: str) -> GatewaySettings:
    """Raises ConfigError for what is none, or does not go together."""
    try:
        settings = msgspec.convert(raw, GatewaySettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from error
    for name, tenant in settings.tenants.items():
        settings.tier(tenant.tier)
        if tenant.budget_usd is not None and not 0.0 <= tenant.budget_usd < 1e9:
            raise ConfigError(f"the budget of {name!r} is {tenant.budget_usd}; write dollars, 0 or more")
    for name in settings.tiers:
        settings.tier(name)
    for name, alias in settings.models.items():
        if any(not share > 0.0 for share in alias.split.values()):
            raise ConfigError(f"a share in the split of {name!r} is not above 0; leave that model out instead")
        for model in alias.fallback:
            if model.startswith(OUTSIDE) and model.removeprefix(OUTSIDE) not in settings.outside:
                raise ConfigError(f"the model {name!r} falls back on {model!r}; write it under [outside]")
    for name, price in settings.prices.items():
        if not min(price.input, price.output, price.cached or 0.0, price.batch, price.flex) >= 0.0:
            raise ConfigError(f"a price of {name!r} is below 0")
    guardrails = settings.guardrails
    if guardrails is not None:
        urls = [url for url in (guardrails.before, guardrails.after) if url]
        if not urls or not all(url.startswith(("https://", "http://")) for url in urls):
            raise ConfigError(
                "[guardrails] has before, after or both, each an address that begins with http:// or https://"
            )
        if not 0.0 < guardrails.timeout_s <= 60.0:
            raise ConfigError(
                f"timeout_s of [guardrails] is {guardrails.timeout_s}; choose more than 0, at most 60 seconds"
            )
    for name, outside in settings.outside.items():
        if not outside.url.startswith(("https://", "http://")):
            raise ConfigError(f"the address of {name!r} is {outside.url!r}; it begins with https:// or http://")
    return settings


class Targets(NamedTuple):
    models: tuple[str, ...]
    """In the order in which they are asked."""
    cascade: CascadeSettings | None = None


def targets_of(name: str, aliases: Mapping[str, AliasSettings], key: str, *, may_leave: bool) -> Targets:
    """`key` decides a split: who asks with the same key (a session, else anything) gets the same side of it."""
    alias = aliases.get(name)
    if alias is None:
        return Targets((name,))
    first = alias.cascade.then if alias.cascade is not None else _drawn(alias.split, name, key) or name
    models = [first, *(model for model in alias.fallback if may_leave or not model.startswith(OUTSIDE))]
    return Targets(tuple(dict.fromkeys(models)), alias.cascade)


def _drawn(split: Mapping[str, float], name: str, key: str) -> str:
    if not split:
        return ""
    number = int.from_bytes(blake2b(f"{name}\0{key}".encode("utf-8", "replace"), digest_size=8).digest(), "little")
    place = number / 2**64 * sum(split.values())
    for model, share in split.items():
        place -= share
        if place < 0.0:
            return model
    return list(split)[-1]
