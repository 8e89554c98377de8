"""Who may keep how much in the prefix cache: pins are granted while there is room for them, and remembered until they end.

Counts blocks, known by what they hold, so that a prompt that is pinned again, or grows from turn to turn, counts once. The
cache itself is the engine's; nothing here changes it.
"""

from penstock.runtime.core.prefix import Namespace, prefix_hashes

MAX_FRACTION = 0.5
"""Of the cache that may be pinned by all; the rest is for whoever comes."""
MAX_TTL_S = 24 * 3600.0
MAX_REMEMBERED = 1 << 20


class PinLedger:
    """One for each model. Times are on the monotonic clock, told by the caller."""

    def __init__(self, *, num_tenants: int) -> None:
        self._num_tenants = max(num_tenants, 1)
        self._pins: dict[str, dict[bytes, float]] = {}
        """When each pinned block of a tenant is free again."""

    def grant(
        self,
        tenant: str,
        salt: str,
        prompt: tuple[int, ...],
        wanted: tuple[tuple[int, float], ...],
        *,
        num_blocks: int,
        block_size: int,
        now: float,
    ) -> tuple[tuple[int, float], ...]:
        """Of the pins that are wanted, (tokens, seconds) each, those that fit: whole blocks, within the tenant's share."""
        self._forget(now)
        pins = self._pins.setdefault(tenant, {})
        share = int(num_blocks * MAX_FRACTION / self._num_tenants)
        granted = []
        for num_tokens, ttl_s in sorted(wanted):
            kept_s = min(ttl_s, MAX_TTL_S)
            num_kept = min(num_tokens, len(prompt) - 1) // block_size
            keys = prefix_hashes(prompt, Namespace(salt, ""), num_kept, block_size)
            new = [key for key in keys if key not in pins]
            if (
                not keys
                or len(pins) + len(new) > share
                or sum(map(len, self._pins.values())) + len(new) > MAX_REMEMBERED
            ):
                continue
            for key in keys:
                pins[key] = max(now + kept_s, pins.get(key, 0.0))
            granted.append((len(keys) * block_size, kept_s))
        if not pins:
            del self._pins[tenant]
        return tuple(granted)

    def _forget(self, now: float) -> None:
        for tenant, pins in tuple(self._pins.items()):
            for key in [key for key, until_s in pins.items() if until_s <= now]:
                del pins[key]
            if not pins:
                del self._pins[tenant]
