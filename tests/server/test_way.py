"""The way of one chat from its route to the engine: how much of the server its reader meets. `tests.server.way` prints it."""

import asyncio

from tests.server.way import walk

MOST_MODULES = 21
MOST_RETURNS = 163


def test_the_way_of_a_chat_is_short() -> None:
    way = asyncio.run(walk())
    assert len(way.modules) <= MOST_MODULES, way.modules
    assert way.num_returns <= MOST_RETURNS
