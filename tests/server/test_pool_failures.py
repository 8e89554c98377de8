"""A model whose files are wrong is looked at once for each time somebody asks, however slow the machine is; and a request is
counted as open at every moment of its wait for a model, so that a drain waits for it."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import Struct
from starlette.requests import Request

from penstock.config import EngineConfig
from penstock.errors import ModelFileError
from penstock.runtime.engine.client import EngineClient
from penstock.service.config import ServerConfig
from penstock.service.server.front import Front
from penstock.service.server.http.exchange import exchange_of
from penstock.service.server.http.faults import ApiError
from penstock.service.server.pool import pool as pool_module
from penstock.service.server.pool.loads import CheckedFiles, PooledModel
from penstock.service.server.pool.pool import ModelPool
from penstock.service.server.pool.resident import Residency, Resident
from penstock.service.server.served import ServedModel, ServedModels
from penstock.service.server.text import Text
from tests.server.serving import idle_client


class Body(Struct):
    model: str = "late"


def test_a_request_is_open_at_every_moment_between_its_wait_and_its_admission() -> None:
    async def ask() -> None:
        resident = Resident("late", 1, state=Residency.LOADING)
        served = ServedModel(idle_client(max_waiting=8, max_sequences=8), num_tenants=0, resident=resident)
        pool = ModelPool([PooledModel(served, resident, lambda: served.text, CheckedFiles)], None)  # type: ignore[arg-type]
        front = Front(ServedModels(served), ServerConfig(), "0", pool)
        messages = [{"type": "http.request", "body": b"{}"}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            return await asyncio.Event().wait()  # type: ignore[return-value]

        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        begun = asyncio.create_task(front.begin(Request(scope, receive), Body, {}))
        while not pool.num_waiting:
            assert not begun.done(), begun.exception()
            await asyncio.sleep(0)
        resident.state = Residency.READY
        turns = asyncio.create_task(pool.run())  # the model is handed over
        while not begun.done():
            assert front.health.num_open
            await asyncio.sleep(0)
        assert begun.result().model is served
        leave = exchange_of(scope).leave
        assert leave is not None
        leave()
        assert (front.health.num_open, resident.num_uses) == (0, 0)
        await pool.stop()
        await turns

    asyncio.run(ask())


def test_who_was_refused_is_no_reason_to_try_again() -> None:
    num_checks = 0

    def check() -> CheckedFiles:
        nonlocal num_checks
        num_checks += 1
        raise ModelFileError("there is no model")

    def open_text() -> Text:
        raise AssertionError("it was never loaded")

    async def ask() -> None:
        resident = Resident("late", 1)
        served = ServedModel(EngineClient([], EngineConfig()), num_tenants=0, resident=resident)
        pool = ModelPool([PooledModel(served, resident, open_text, check)], None)
        task = asyncio.create_task(pool.run())
        for number in range(1, 6):
            with pytest.raises(ApiError, match="there is no model"):
                await pool.acquire(resident)
            for _ in range(10):
                await asyncio.sleep(0)  # the pool has its turns
            assert num_checks == number
            assert not resident.is_checking
        await pool.stop()
        await task

    with patch.object(pool_module, "FIRST_PAUSE_S", 0.0):  # as if the loop stood still until the pause was over
        asyncio.run(ask())


def test_a_request_and_the_start_of_the_server_look_at_the_files_once_together() -> None:
    """Two failures of one look would double the pause behind the back of a client that was told of the first."""
    num_checks = 0

    def check() -> CheckedFiles:
        nonlocal num_checks
        num_checks += 1
        raise ModelFileError("there is no model")

    async def ask() -> None:
        resident = Resident("late", 1)
        served = ServedModel(EngineClient([], EngineConfig()), num_tenants=0, resident=resident)
        pooled = PooledModel(served, resident, lambda: served.text, check)
        pool = ModelPool([pooled], None)
        request = asyncio.create_task(pool.acquire(resident))
        await asyncio.sleep(0)
        task = asyncio.create_task(pool.run())
        looks = [asyncio.create_task(pool.check(pooled))]  # between the pool's turn and the look that it began
        with pytest.raises(ApiError, match="there is no model"):
            await request
        await asyncio.gather(*looks, *asyncio.all_tasks() - {asyncio.current_task(), task})
        assert (num_checks, resident.num_failures) == (1, 1)
        await pool.stop()
        await task

    asyncio.run(ask())
