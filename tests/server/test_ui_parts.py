"""Parts behind the pages, each by itself: waterfalls name who caused a stall, and tools give way to answers."""

import asyncio
import sys
from asyncio.subprocess import Process
from pathlib import Path
from unittest.mock import patch

from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.inspection import CACHED, FREE, HELD, NO_PREFIX, SHARED, pool_state
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.sequence import Sequence
from penstock.runtime.engine.client import StepView
from penstock.service.server.http.exchange import KEY, ServerExchange
from penstock.service.server.ui import tools as tools_module
from penstock.service.server.ui.ledger import RequestRecord
from penstock.service.server.ui.pages import MAX_KEPT, RefusalLog
from penstock.service.server.ui.tools import Tools, ToolThrottle
from penstock.service.server.ui.waterfall import waterfall
from tests.machine import PATIENCE_S


def step(end_s: float, duration_s: float, num_prompt: int, prompts: tuple[int, ...]) -> StepView:
    return StepView(end_s, duration_s, num_prompt, 1, 0, 0, 0, prompts)


def test_a_stall_names_the_request_whose_prompt_caused_it() -> None:
    times = [1.0, 1.1, 1.2, 1.3, 2.3, 2.4]
    record = RequestRecord(7, "req", "", 10, 1, 0.0, 0.01, 0.02, 0.05, 1.0, 2.4, 2.5, 6, times=times)
    steps = [step(time, 0.1, 0, ()) for time in times if time != 2.3] + [step(2.3, 0.95, 900, (8, 9))]
    found = waterfall(record, steps, 3.0)
    assert [span["name"] for span in found["spans"]] == ["receive", "tokenize", "queue", "prefill", "decode", "flush"]
    (stall,) = found["stalls"]
    assert stall["by"] == [8, 9]
    assert stall["cause"] == "900 prompt tokens in one step"
    slow_reader = waterfall(record, [step(time, 0.01, 0, ()) for time in times], 3.0)["stalls"]
    assert slow_reader[0]["by"] == []
    assert "slow" in slow_reader[0]["cause"]


def test_every_block_tells_its_state_and_its_prefix() -> None:
    pool = BlockPool(16, 4)
    sequences = []
    for number, first in enumerate((1, 1, 50)):
        prompt = (*range(first, first + 8), 100 + number)
        request = Request(request_id=number, prompt=prompt, params=SamplingParams(max_tokens=1), arrival_s=0.0)
        sequence = Sequence(request, 0, number, 16)
        assert pool.reserve(sequence.holding, len(prompt), pool.match(sequence.holding)) is not None
        pool.publish(sequence.holding, len(prompt))
        sequences.append(sequence)
    pool.release(sequences[2].holding)
    state = pool_state(pool)
    shared, own = sequences[0].blocks[:2], sequences[0].blocks[2]
    assert {state.prefix_of[block] for block in shared} == {0}
    assert state.prefixes[0].first_tokens[:4] == (1, 2, 3, 4)
    assert state.states[own] == HELD
    assert state.prefix_of[own] == NO_PREFIX
    alone = [block for block, one in enumerate(state.states) if one == CACHED]
    assert {state.prefix_of[block] for block in alone} == {1}
    assert set(state.states) == {FREE, HELD, SHARED, CACHED}


def test_refusals_are_bounded_and_belong_to_somebody() -> None:
    log = RefusalLog()
    for number in range(MAX_KEPT + 5):
        scope = {"path": "/v1/x", KEY: ServerExchange("r", tenant=f"key-{number % 2}")}
        log.note(scope, 429, "full" * 100, "busy", 0.0)
    log.note({"path": "/app/v1/simulate"}, 409, "superseded", "superseded", 0.0)
    everything = log.since(0, None)
    assert len(everything) == MAX_KEPT
    assert log.num_refused == MAX_KEPT + 5
    assert len(log.since(0, "key-1")) == MAX_KEPT // 2
    assert max(len(one["message"]) for one in everything) < 260
    assert log.since(everything[-1]["number"], None) == []


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def until(pid: int, *states: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while state_of(pid) not in states:
            await asyncio.sleep(0.01)


def test_a_tool_stands_still_while_answers_are_written_and_goes_on_after() -> None:
    async def law() -> None:
        is_busy = [False]
        throttle = ToolThrottle(lambda: is_busy[0])
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
        try:
            throttle.add(process)
            await until(process.pid, "R")
            is_busy[0] = True
            await until(process.pid, "T")
            await until(process.pid, "R", "S")
            await until(process.pid, "T")
            is_busy[0] = False
            await until(process.pid, "R")
            is_busy[0] = True
            await until(process.pid, "T")
            throttle.free(process)
            await until(process.pid, "R")
        finally:
            process.kill()
            await process.wait()

    asyncio.run(law())


def test_one_process_is_kept_ready_however_many_tools_begin_at_once() -> None:
    started: list[Process] = []
    start = tools_module._start
    task = {"task": "simulate", "words": ["--num-requests", "10"], "frames": False}

    async def start_and_count() -> Process:
        started.append(await start())
        return started[-1]

    async def law() -> None:
        tools = Tools(lambda: False)
        try:
            for num_jobs in (2, 4):
                await asyncio.gather(*(tools.result("client", lane, task) for lane in "ab"))
                assert len(started) == num_jobs + 1
        finally:
            for process in started:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    with patch.object(tools_module, "_start", start_and_count):
        asyncio.run(law())
