"""A response of events that goes on until its source ends or its reader leaves."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from penstock.service.server.http import sse
from penstock.service.server.http.answer import Parts
from penstock.service.server.http.faults import ApiError

Events = AsyncGenerator[tuple[str, Any], None]
"""Names and values."""


def event_answer(source: Events) -> Parts:
    """`source` is closed when the reader has left."""
    return Parts(_worded(source), sse.HEADERS, sse.PING, _fault)


async def _worded(source: Events) -> AsyncGenerator[bytes, None]:
    async with aclosing(source):
        async for event in source:
            yield sse.named_event(*event)


def _fault(error: ApiError) -> bytes:
    return sse.named_event("fault", {"error": {"message": error.message, "param": error.param, "code": error.code}})
