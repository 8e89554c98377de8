"""A model whose files are wrong is looked at once for each time somebody asks, however slow the machine is."""

import asyncio
from unittest.mock import patch

import pytest

from penstock.config import EngineConfig
from penstock.errors import ModelFileError
from penstock.runtime.engine.client import EngineClient
from penstock.service.server.http.faults import ApiError
from penstock.service.server.pool import pool as pool_module
from penstock.service.server.pool.loads import CheckedFiles, PooledModel
from penstock.service.server.pool.pool import ModelPool
from penstock.service.server.pool.resident import Resident
from penstock.service.server.served import ServedModel
from penstock.service.server.text import Text


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
