"""A client that has left before its body was read costs no more than the reading."""

import asyncio
from types import SimpleNamespace

import pytest
from starlette.requests import ClientDisconnect, Request

from penstock.service.server.http.body import FEW_BYTES, BodyLimits, read_body


def request(body: bytes, *, is_gone: bool) -> Request:
    scope = {"type": "http", "headers": [], "penstock.connection": SimpleNamespace(is_gone=is_gone)}

    messages = iter([{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, object]:
        return next(messages)

    return Request(scope, receive)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_long_body_whose_sender_has_left_is_not_parsed(is_gone: bool) -> None:
    body = b"x" * (FEW_BYTES + 1)
    reading = read_body(request(body, is_gone=is_gone), BodyLimits(1 << 20))
    if is_gone:
        with pytest.raises(ClientDisconnect):
            asyncio.run(reading)
    else:
        assert asyncio.run(reading) == body
