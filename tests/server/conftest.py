"""Two servers shared by all tests: one open to this machine, one behind a key."""

from collections.abc import Iterator

import httpx
import pytest

from tests.server.serving import KEY, Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def locked() -> Iterator[Server]:
    with serving("--api-key", "another-key-of-some-length", key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client
