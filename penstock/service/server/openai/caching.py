"""Prompt caching as OpenAI's bodies ask for it: a key that says which requests begin alike, and how long a prompt is kept."""

import re
from typing import Any, Protocol

from penstock.service.server.generation import CacheHints, CachePin
from penstock.service.server.http.faults import invalid

RETENTION_S = {"in_memory": None, "in-memory": None, "24h": 24 * 3600.0}
"""How long the prompt is kept on purpose; None for as long as there is room."""
_TTL = re.compile(r"([1-9][0-9]{0,5})(s|m|h)")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


class CachingFields(Protocol):
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    prompt_cache_options: dict[str, Any] | None


def cache_hints(body: CachingFields, num_messages: int, salt: str = "") -> CacheHints:
    ttl_s = None
    if body.prompt_cache_retention is not None:
        if body.prompt_cache_retention not in RETENTION_S:
            raise invalid("prompt_cache_retention must be in_memory or 24h", "prompt_cache_retention")
        ttl_s = RETENTION_S[body.prompt_cache_retention]
    ttl = (body.prompt_cache_options or {}).get("ttl")
    if ttl is not None:
        found = _TTL.fullmatch(ttl) if isinstance(ttl, str) else None
        if found is None:
            raise invalid('prompt_cache_options.ttl must be a duration such as "30m"', "prompt_cache_options.ttl")
        ttl_s = int(found.group(1)) * _UNIT_S[found.group(2)]
    pins = () if ttl_s is None else (CachePin(num_messages, ttl_s),)
    return CacheHints(salt=salt, key=body.prompt_cache_key or "", pins=pins)
