"""Laws of the engine behind its process line: every request ends once, rightly or in an error, whatever befalls the engine."""

import asyncio
import os
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.errors import ConfigError, EngineError
from penstock.runtime.core.batch import Fault, FinishReason
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.client import EngineClient
from tests.engine.answers import expected_tokens
from tests.engine.poisoned import DIE, EXHAUST, HANG, RAISE
from tests.machine import PATIENCE_S

VOCAB = 256
SLOW_STEPS = "oracle:step_ms=5"


def config_of(model: str = "oracle:", **scheduler: Any) -> EngineConfig:
    return EngineConfig(ModelConfig(model), CacheConfig(num_blocks=512), SchedulerConfig(**scheduler))


@asynccontextmanager
async def running(config: EngineConfig, *, hang_s: float = 10.0) -> AsyncIterator[EngineClient]:
    command = [sys.executable, "-m", "tests.engine.poisoned"]
    client = EngineClient(command, config, hang_s=hang_s)
    supervisor = asyncio.create_task(client.run())
    ready = asyncio.create_task(client.ready.wait())
    await asyncio.wait([supervisor, ready], return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        if supervisor.done():
            supervisor.result()
        yield client
    finally:
        await client.stop()
        await supervisor


def run(law: Callable[[EngineClient], Awaitable[None]], config: EngineConfig | None = None, **options: Any) -> None:
    async def session() -> None:
        async with running(config or config_of(), **options) as client:
            await law(client)

    asyncio.run(session())


@dataclass
class Ledger:
    """One line a request: what it must be answered, and how it ended."""

    complete: int = 0
    failed: int = 0
    wrong: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)

    async def ask(self, client: EngineClient, prompt: tuple[int, ...], **options: Any) -> None:
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 12} | options)
        request = Request(request_id=client.next_id(), prompt=prompt, params=params, arrival_s=time.monotonic())
        tokens: dict[int, list[int]] = {choice: [] for choice in range(params.n)}
        ends: dict[int, FinishReason] = {}
        async for delta in client.submit(request):
            assert delta.choice not in ends, "told more after the end"
            tokens[delta.choice].extend(delta.token_ids)
            if delta.finish is not None:
                ends[delta.choice] = delta.finish.reason
        if len(ends) != params.n:
            self.lost.append(request.request_id)
        elif FinishReason.ERROR in ends.values():
            self.failed += 1
        else:
            self.complete += 1
            for choice, reported in tokens.items():
                if (
                    reported != expected_tokens(prompt, params, choice, len(reported), VOCAB)
                    or len(reported) != params.max_tokens
                ):
                    self.wrong.append(request.request_id)


def prompts(seed: int, number: int) -> list[tuple[int, ...]]:
    random = Random(seed)
    stem = tuple(random.randrange(200) for _ in range(40))
    return [stem[: random.randrange(40)] + tuple(random.randrange(200) for _ in range(1, 20)) for _ in range(number)]


def test_many_at_once_are_all_answered_rightly() -> None:
    async def law(client: EngineClient) -> None:
        ledger = Ledger()
        asks = [ledger.ask(client, prompt, n=1 + number % 3) for number, prompt in enumerate(prompts(1, 120))]
        await asyncio.gather(*asks)
        assert (ledger.complete, ledger.failed, ledger.wrong, ledger.lost) == (120, 0, [], [])
        assert client.num_open == 0
        assert client.load.num_running == 0
        assert client.load.kv_usage_fraction == 0.0

    run(law)


@pytest.mark.parametrize("num_kills", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_engines_lose_nothing(num_kills: int, caplog: pytest.LogCaptureFixture) -> None:
    """What had begun goes on with the next engine, token by token what it would have been; what had not is begun by it. The log
    tells how long each was away."""

    async def law(client: EngineClient) -> None:
        ledger = Ledger()
        for round_ in range(num_kills):
            asks = [asyncio.create_task(ledger.ask(client, prompt)) for prompt in prompts(round_, 32)]
            while not any(stream.is_started for stream in client.streams):
                await asyncio.sleep(0.001)
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
            await asyncio.gather(*asks)
        assert (ledger.complete, ledger.failed) == (32 * num_kills, 0)
        assert not ledger.wrong
        assert not ledger.lost
        assert client.num_restarts == num_kills
        assert caplog.text.count("the engine is back after") == num_kills

    run(law, config_of(SLOW_STEPS, max_sequences=8))


def test_a_stopped_engine_is_replaced_and_never_heard_again() -> None:
    async def law(client: EngineClient) -> None:
        ledger = Ledger()
        asks = [asyncio.create_task(ledger.ask(client, prompt)) for prompt in prompts(2, 16)]
        while not any(stream.is_started for stream in client.streams):
            await asyncio.sleep(0.001)
        first = client.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        await asyncio.gather(*asks)
        assert client.pid != first
        assert ledger.complete + ledger.failed == 16
        assert (ledger.wrong, ledger.lost) == ([], [])

    run(law, config_of(SLOW_STEPS, max_sequences=4), hang_s=2.0)


def test_a_short_pause_harms_nobody() -> None:
    async def law(client: EngineClient) -> None:
        ledger = Ledger()
        asks = [asyncio.create_task(ledger.ask(client, prompt)) for prompt in prompts(3, 16)]
        while not any(stream.is_started for stream in client.streams):
            await asyncio.sleep(0.001)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(client.pid, signal.SIGCONT)
        await asyncio.gather(*asks)
        assert (ledger.complete, ledger.wrong, ledger.lost, client.num_restarts) == (16, [], [], 0)

    run(law, config_of(SLOW_STEPS))


def test_a_step_that_never_ends_is_ended(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The stacks tell where; the request that hung three engines is refused and the rest are answered."""

    async def law(client: EngineClient) -> None:
        ledger, poison = Ledger(), Ledger()
        asks = [asyncio.create_task(ledger.ask(client, prompt)) for prompt in prompts(4, 6)]
        await asyncio.gather(poison.ask(client, (HANG, 1, 2)), *asks)
        assert poison.failed == 1
        assert ledger.complete + ledger.failed == 6
        assert (ledger.wrong, ledger.lost) == ([], [])

    monkeypatch.setattr("penstock.runtime.engine.client.pulse.STEP_FACTOR", 0.1)
    run(law)
    assert "launch" in capfd.readouterr().err


@pytest.mark.parametrize("poison", [RAISE, EXHAUST])
def test_a_request_that_cannot_be_computed_fails_alone(poison: int) -> None:
    async def law(client: EngineClient) -> None:
        ledger, sick = Ledger(), Ledger()
        asks = [ledger.ask(client, prompt) for prompt in prompts(5, 31)]
        await asyncio.gather(*asks[:15], sick.ask(client, (poison, 7)), *asks[15:])
        assert (ledger.complete, ledger.failed, ledger.wrong, ledger.lost) == (31, 0, [], [])
        assert (sick.failed, client.num_restarts) == (1, 0)

    run(law)


def test_a_request_that_kills_engines_is_found_and_refused() -> None:
    """Requests that wait behind it are answered: those that two engines died with are tried one by one."""

    async def law(client: EngineClient) -> None:
        ledger, sick = Ledger(), Ledger()
        asks = [ledger.ask(client, prompt) for prompt in prompts(6, 8)]
        await asyncio.gather(sick.ask(client, (DIE, 1)), *asks)
        assert (sick.failed, client.num_restarts) == (1, 3)
        assert (ledger.complete, ledger.failed, ledger.wrong, ledger.lost) == (8, 0, [], [])

    run(law)


def test_a_cancelled_request_frees_the_cache_and_is_heard_no_more() -> None:
    async def law(client: EngineClient) -> None:
        request = Request(
            request_id=client.next_id(), prompt=(1, 2, 3), params=SamplingParams(max_tokens=500), arrival_s=0.0
        )
        stream = client.submit(request)
        await stream.take()
        client.cancel(request.request_id)
        ledger = Ledger()
        await ledger.ask(client, (4, 5))
        assert client.load.num_running == 0
        assert client.load.kv_usage_fraction == 0.0
        assert ledger.complete == 1

    run(law, config_of(SLOW_STEPS))


def test_one_choice_can_be_cancelled_and_the_others_go_on() -> None:
    async def law(client: EngineClient) -> None:
        params = SamplingParams(seed=3, max_tokens=40, n=3)
        request = Request(request_id=client.next_id(), prompt=(5, 6, 7), params=params)
        tokens: dict[int, list[int]] = {choice: [] for choice in range(3)}
        ends = {}
        async for delta in client.submit(request):
            tokens[delta.choice].extend(delta.token_ids)
            if delta.choice == 1 and delta.token_ids:
                client.cancel_choice(request.request_id, 1)
            if delta.finish is not None:
                ends[delta.choice] = delta.finish.reason
        assert ends == {0: FinishReason.LENGTH, 1: FinishReason.CANCELLED, 2: FinishReason.LENGTH}
        assert len(tokens[1]) < 40
        for choice in (0, 2):
            assert tokens[choice] == expected_tokens(request.prompt, params, choice, 40, VOCAB)

    run(law, config_of(SLOW_STEPS))


def test_too_much_waiting_and_too_long_a_prompt_are_refused_by_kind() -> None:
    async def law(client: EngineClient) -> None:
        async def first_fault(prompt: tuple[int, ...], n: int) -> Fault | None:
            request = Request(request_id=client.next_id(), prompt=prompt, params=SamplingParams(n=n, max_tokens=64))
            async for delta in client.submit(request):
                return delta.finish.fault if delta.finish else None
            raise AssertionError("a stream ended without a word")

        assert await first_fault((1,) * 9000, 1) is Fault.REQUEST
        assert await first_fault((1, 2), 4) is Fault.REQUEST
        # Sent together: one place runs, three wait, so of nine choices some find no room and none is refused for itself.
        faults = await asyncio.gather(*(first_fault((number, 3), 3) for number in range(3)))
        assert Fault.CAPACITY in faults
        assert set(faults) == {None, Fault.CAPACITY}

    run(law, config_of(SLOW_STEPS, max_waiting=3, max_sequences=1))


def test_embeddings_come_through_the_same_line() -> None:
    async def law(client: EngineClient) -> None:
        first, again, other = await client.embed([(1, 2, 3), (1, 2, 3), (1, 2)])
        assert first == again != other

    run(law)


def test_an_impossible_config_ends_the_start_with_its_reason_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def start(config: EngineConfig) -> None:
        async with running(config):
            pass

    with pytest.raises(ConfigError, match="no option"):
        asyncio.run(start(config_of("oracle:colour=3")))
    assert not caplog.messages, "whoever asked for it tells it"


def test_an_engine_that_cannot_start_is_given_up() -> None:
    async def start() -> None:
        await EngineClient([sys.executable, "-c", "import sys; sys.exit(3)"], config_of()).run()

    with pytest.raises(EngineError, match="exit status 3"):
        asyncio.run(start())


def test_sockets_are_private_and_vanish() -> None:
    folders: list[Path] = []

    async def law(client: EngineClient) -> None:
        folder = Path(client._child._spawned.folder)  # type: ignore[union-attr]
        folders.append(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
        assert len(list(folder.iterdir())) == 2

    run(law)
    assert not folders[0].exists()


def test_an_orphan_ends_itself_and_tidies_up(tmp_path: Path) -> None:
    """The parent is killed with no chance to say goodbye."""
    code = (
        "import asyncio, sys, os, signal\n"
        "from tests.engine.test_client import running, config_of\n"
        "async def main():\n"
        "    async with running(config_of()) as client:\n"
        "        print(client.pid, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )

    async def law() -> int:
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)}
        )
        out, _ = await parent.communicate()
        return int(out)

    pid = asyncio.run(law())
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s and _is_alive(pid):
        time.sleep(0.01)
    assert not _is_alive(pid)
    assert list(tmp_path.iterdir()) == []


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False
