"""Lists of what all replicas keep, as one list: every replica's pages are read, put in order of time, and paged again here."""

import asyncio
from collections.abc import Sequence
from urllib.parse import parse_qs, quote

import msgspec

from penstock.service.edge.paging import MAX_LIMIT, Item, page_of
from penstock.service.edge.refusal import unavailable
from penstock.service.router.proxy.incoming import Incoming
from penstock.service.router.proxy.job import Job
from penstock.service.router.proxy.replica_pool import ReplicaPool
from penstock.service.upstream.connections import fetch

MAX_PAGES = 20
"""Read of one replica; older things are not listed."""
FETCH_S = 5.0


class _Page(msgspec.Struct):
    data: list[Item]
    has_more: bool = False


async def merged_list(job: Job, pools: Sequence[ReplicaPool]) -> bytes:
    """Raises Refusal where a replica that should be asked does not answer: half a list would be a wrong one."""
    found = await asyncio.gather(*(_items(job, pool) for pool in pools))
    items = sorted((item for part in found for item in part), key=lambda item: -int(item.get("created_at") or 0))
    return msgspec.json.encode(page_of(items, _query(job.request)))


async def _items(job: Job, pool: ReplicaPool) -> list[Item]:
    """All that one replica keeps, newest first."""
    items: list[Item] = []
    purpose = _query(job.request).get("purpose")
    base = f"limit={MAX_LIMIT}" + (f"&purpose={quote(purpose)}" if purpose else "")
    query = base
    for _ in range(MAX_PAGES):
        try:
            found = await fetch(pool, job.data(pool, None, query), FETCH_S)
            page = msgspec.json.decode(found.body, type=_Page) if found.status == 200 else None
        except (OSError, msgspec.DecodeError):
            page = None
        if page is None:
            raise unavailable("a replica does not say what it keeps; try again in a moment", 1, code="replica_failed")
        items += page.data
        if not page.has_more or not page.data:
            break
        query = f"{base}&after={quote(str(page.data[-1]['id']))}"
    return items


def _query(request: Incoming) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(request.query, max_num_fields=20).items()}
