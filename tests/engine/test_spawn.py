"""A process begun early is the engine's first, or leaves nothing behind."""

import asyncio
import sys

import pytest

from penstock.config import EngineConfig, ModelConfig
from penstock.runtime.engine.client import EngineClient
from penstock.runtime.engine.spawn import Spawned
from tests.machine import PATIENCE_S

WORKER = [sys.executable, "-m", "penstock.assembly.worker", "--model=oracle:"]


def test_a_process_nobody_took_ends_with_its_folder() -> None:
    with Spawned(WORKER) as spawned:
        assert spawned.folder.is_dir()
        assert spawned.process.poll() is None
    assert spawned.process.returncode is not None
    assert not spawned.folder.exists()


def test_a_process_that_gets_no_setup_ends_in_peace() -> None:
    with Spawned(WORKER) as spawned:
        assert spawned.process.stdin is not None
        spawned.process.stdin.close()
        assert spawned.process.wait(PATIENCE_S) == 0
        assert not spawned.folder.exists()


def test_a_command_that_is_not_there_leaves_no_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        Spawned([str(tmp_path / "nothing")])
    assert list(tmp_path.iterdir()) == []


def test_the_first_engine_is_the_process_begun_early() -> None:
    async def pids() -> tuple[int, int | None]:
        with Spawned(WORKER) as spawned:
            config = EngineConfig(ModelConfig(model="oracle:"))
            client = EngineClient(WORKER, config, spawned=spawned)
            running = asyncio.create_task(client.run())
            async with asyncio.timeout(PATIENCE_S):
                await client.ready.wait()
            pid = client.pid
            await client.stop()
            await running
            assert not spawned.folder.exists()
            return spawned.process.pid, pid

    early, served = asyncio.run(pids())
    assert early == served
