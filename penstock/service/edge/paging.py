"""A part of a list, as OpenAI's clients ask for it: `limit`, `order` and `after` of the query, at server and router alike."""

from collections.abc import Mapping
from typing import Any

from penstock.service.edge.refusal import Refusal

MAX_LIMIT = 100
DEFAULT_LIMIT = 20

Item = dict[str, Any]


def page_of(newest: list[Item], query: Mapping[str, str]) -> Item:
    """The newest first unless asked otherwise. Raises Refusal for a query that names nothing."""
    limit = query.get("limit", str(DEFAULT_LIMIT))
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAX_LIMIT:
        raise Refusal(400, f"limit must be a number from 1 to {MAX_LIMIT}", param="limit", code="invalid_value")
    ordered = newest[::-1] if query.get("order") == "asc" else newest
    after = query.get("after")
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item.get("id") == after]
        if not places:
            message = f"after names {after[:80]!r}, which is not in the list"
            raise Refusal(400, message, param="after", code="invalid_value")
        ordered = ordered[places[0] + 1 :]
    data = ordered[: int(limit)]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": len(data) < len(ordered),
    }
