"""Money as whole numbers of a billionth of a dollar, so that sums are exact, and what tokens cost."""

from decimal import ROUND_CEILING, Decimal

import msgspec

NANO = 1_000_000_000
"""Nanodollars in a dollar."""
PER_MILLION = 1_000_000


def nanodollars(dollars: float | str) -> int:
    return int((Decimal(str(dollars)) * NANO).to_integral_value(ROUND_CEILING))


def shown(amount: int) -> str:
    return f"${amount / NANO:,.6f}".rstrip("0").rstrip(".") if amount else "$0"


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars a million tokens, as the gateway's file has them."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    """Of prompt tokens that a prefix cache gave; None as any other."""
    batch: float = 1.0
    """Share of the price that requests of a batch pay."""
    flex: float = 1.0
    """Share that requests of the service tier `flex` pay, which wait for all others."""

    def share(self, tier: str) -> float:
        return self.batch if tier == "batch" else self.flex if tier == "flex" else 1.0

    def cost(self, num_prompt: int, num_cached: int, num_output: int, tier: str = "") -> int:
        """Nanodollars, rounded up."""
        cached = min(num_cached, num_prompt)
        rate = self.input if self.cached is None else self.cached
        millions = (num_prompt - cached) * Decimal(str(self.input)) + cached * Decimal(str(rate))
        millions += num_output * Decimal(str(self.output))
        return int((millions * Decimal(str(self.share(tier))) * NANO / PER_MILLION).to_integral_value(ROUND_CEILING))
