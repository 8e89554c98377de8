"""What a request asks of the gate, what it gets where it is let in, and what it took: values alone."""

import secrets
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.service.gateway.accounts import budgets
from penstock.service.gateway.keys import KeyRecord
from penstock.service.gateway.limits import Meter
from penstock.service.gateway.settings import Targets, TenantSettings
from penstock.service.marks import TokenBound

NO_BOUND = 1 << 40


@dataclass(frozen=True, slots=True)
class Asking:
    """What a request wants, as far as it can be known before."""

    request_id: str
    model: str
    num_prompt: int
    num_output: int
    """Tokens it is taken to take at most, over all its choices."""
    tag: str = ""
    session: str = ""
    tier: str = ""
    """batch or flex, which may have prices of their own."""
    later: str = ""
    """batch or background, where its tokens are made after it is answered."""
    is_free: bool = False
    """No tokens are made: something is looked at, kept or deleted."""


@dataclass(slots=True)
class Admittance:
    """A request that was let in."""

    ask: Asking
    key: KeyRecord
    tenant: TenantSettings
    meter: Meter
    targets: Targets
    num_reserved: int
    scopes: tuple[str, ...] = ()
    reservation: budgets.Reservation | None = None
    account: str = field(default_factory=lambda: secrets.token_hex(8))
    """Its name where it is billed, and in the database."""
    is_settled: bool = field(default=False)

    @property
    def most(self) -> TokenBound | None:
        """Tokens that the server that answers is held to; None where nothing bounds them."""
        tier, ask = self.meter.tier, self.ask
        if ask.is_free:
            return None
        if self.scopes:
            return TokenBound(min(ask.num_prompt, tier.max_prompt_tokens or ask.num_prompt), ask.num_output)
        if (tier.max_prompt_tokens is None and tier.max_output_tokens is None) or ask.tier == "batch":
            return None
        has_output = tier.max_output_tokens is not None
        return TokenBound(tier.max_prompt_tokens or NO_BOUND, ask.num_output if has_output else NO_BOUND)


class Spent(NamedTuple):
    """Tokens that one model took."""

    model: str
    num_prompt: int
    num_cached: int
    num_output: int
