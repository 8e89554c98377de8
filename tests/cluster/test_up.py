"""`penstock up` on a Ray cluster begun for it: replicas placed, one lost without a request lost, ended in order."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.cluster.upping import load, up

MODEL = "oracle:step_ms=4,vocab=256"


@pytest.mark.slow
def test_a_replica_is_lost_and_no_request_with_it(tmp_path: Path) -> None:
    flags = (MODEL, "--min-replicas", "2", "--max-replicas", "2", "--replica-cpus", "0.5", "--num-blocks", "2048")
    with up(tmp_path, *flags) as service:
        service.await_words("is ready on", 2)

        async def law() -> list[str]:
            running = asyncio.create_task(load(service.url, 60, 12, 100))
            await asyncio.sleep(0.5)
            os.kill(service.server_pids()[0], signal.SIGKILL)
            return await running

        assert asyncio.run(law()) == []
        service.await_words("is lost")
        service.await_words("is ready on", 3)
        assert service.stop() == 0
        assert service.server_pids() == []
