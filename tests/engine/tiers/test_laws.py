"""What tiers must never change, and when they are used: with the oracle, whose answers prove every block."""

import gc
import itertools
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.tiers import disk as disk_module
from penstock.runtime.engine.tiers.arrivals import CANARY_BLOCKS
from penstock.runtime.engine.tiers.disk import DiskTier
from penstock.runtime.engine.tiers.host import HostTier
from penstock.runtime.engine.tiers.news import FetchedBlocks
from penstock.runtime.engine.tiers.policy import Ghosts
from penstock.runtime.engine.tiers.tiers import KVTiers
from tests.engine.answers import LIMITS, VOCAB_SIZE, Answers, Clock, expected, make_request
from tests.engine.tiers.test_state_machine import FORMAT, LoggingOracle, SlowCopies

SMALL = LIMITS._replace(num_blocks=24, max_sequences=4)


class Counting(LoggingOracle):
    """Counts the tokens that are computed."""

    num_computed = 0

    def launch(self, batch: Any, *masks: Any) -> Any:
        self.num_computed += batch.num_tokens
        return super().launch(batch, *masks)


class SlowCounting(Counting, SlowCopies):
    """Copies beside its steps."""


class Served:
    """An engine with tiers, and what it answered."""

    def __init__(
        self,
        limits: Limits = SMALL,
        disk: DiskTier | None = None,
        *,
        host: int = 10**6,
        runner: type[Counting] = Counting,
        **options: Any,
    ) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self.runner = runner(limits.num_blocks, limits.block_size, vocab_size=VOCAB_SIZE)
        self.tiers = KVTiers(
            self.scheduler, self.runner, FORMAT, ThreadPoolExecutor(1), host=HostTier(host), disk=disk, **options
        )
        self.engine = Engine(self.scheduler, self.runner, Clock(), tiers=self.tiers)
        self.answers = Answers()
        self.requests: dict[int, Request] = {}

    def ask(self, *requests: Request) -> None:
        for request in requests:
            self.requests[request.request_id] = request
            self.engine.submit(request)
        while self.engine.has_work:
            self.answers.hear(self.engine.step())
            if not self.scheduler.has_work and self.engine.has_work:
                self.engine.wait(5.0)
        self.tiers.store.reader.submit(int).result()  # the disk has what was given to it

    def check(self) -> None:
        """Every answer is the oracle's; nothing is lost; the books balance."""
        assert {number for number, _ in self.answers} == set(self.requests)
        for (number, choice), answer in self.answers.items():
            assert (answer.tokens, answer.reason) == expected(self.requests[number], choice, self.limits)
        self.engine.check()

    def close(self) -> None:
        self.engine.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def prompt(number: int, length: int = 33) -> tuple[int, ...]:
    numbers = random.Random(number)
    return tuple(numbers.randrange(VOCAB_SIZE) for _ in range(length))


def test_a_preempted_sequence_gets_its_blocks_back() -> None:
    """Swapped, not computed again; with copies slower than computing, computed again and not swapped. Answers are the same."""
    computed = {}
    for bytes_s in (1e12, 1e-3):
        served = Served(SMALL._replace(num_blocks=20))
        served.tiers.rates.note_prompt(1000, 1.0)
        served.tiers.rates.write_bytes_s = bytes_s
        served.tiers.rates.note_write = lambda *_: None  # type: ignore[method-assign]
        served.tiers.rates.note_prompt = lambda *_: None  # type: ignore[method-assign]
        served.ask(*[make_request(number, prompt(number, 17), max_tokens=30) for number in range(1, 5)])
        served.check()
        assert served.scheduler.num_preemptions
        computed[bytes_s] = served.runner.num_computed, served.tiers.counts.swapped_blocks
    (few, swapped), (many, kept) = computed.values()
    assert swapped > 0
    assert kept <= 1  # one try in sixteen
    assert few < many


def test_requests_for_the_same_blocks_wait_for_one_load(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 1 << 20)
    served = Served(disk=tier, host=1, keeps_all=True)
    served.ask(make_request(1, prompt(1)))
    served.ask(*[make_request(number, prompt(number)) for number in range(2, 6)])
    reads: list[bytes] = []
    get = tier.get
    tier.get = lambda key, hash: reads.append(key) or get(key, hash)  # type: ignore[method-assign,func-returns-value]
    served.ask(*[make_request(number, (*prompt(1), number)) for number in range(10, 14)])
    served.check()
    assert served.tiers.counts.attached == 3
    assert 0 < len(reads) <= len(prompt(1)) // SMALL.block_size
    served.close()


def test_nobody_waits_for_a_load_that_computing_beats(tmp_path: Path) -> None:
    served = Served(disk=DiskTier(tmp_path, 1 << 20), host=1, keeps_all=True)
    served.ask(*[make_request(number, prompt(number)) for number in range(1, 6)])
    served.tiers.rates.note_prompt(10_000, 1.0)
    served.tiers.rates.read_bytes_s = 1.0
    served.ask(make_request(9, prompt(1)))
    served.check()
    assert served.tiers.counts.loaded_blocks == 0
    assert served.tiers.counts.declined_blocks
    assert served.answers[9, 0].prefix is not None
    assert served.answers[9, 0].prefix.tier_miss == "computing was faster than reading the disk"
    served.close()


def test_usage_says_which_tier_gave_what(tmp_path: Path) -> None:
    served = Served(disk=DiskTier(tmp_path, 1 << 20), keeps_all=True)
    served.ask(*[make_request(number, prompt(number)) for number in range(1, 6)])
    served.ask(make_request(9, prompt(1)))
    hit = served.answers[9, 0].prefix
    assert hit is not None
    assert (hit.host, hit.disk) == (hit.num_tokens, 0)
    served.close()
    again = Served(disk=DiskTier(tmp_path, 1 << 20), keeps_all=True)
    again.ask(make_request(9, prompt(1)))
    hit = again.answers[9, 0].prefix
    assert hit is not None
    assert (hit.host, hit.disk) == (0, hit.num_tokens)
    again.ask(make_request(10, prompt(77)))
    hit = again.answers[10, 0].prefix
    assert hit is not None
    assert (hit.num_tokens, hit.tier_miss) == (0, "no tier has the next block")
    again.close()


def test_a_canary_finds_a_copy_that_went_wrong() -> None:
    """What lies on the device after a load is not what was to be written: it is computed, and counted."""
    served = Served(keeps_all=True, canary_every=1)
    served.ask(*[make_request(number, prompt(number)) for number in range(1, 6)])
    before = served.tiers.counts
    write = served.runner.write_blocks
    served.runner.write_blocks = lambda blocks, contents: write(  # type: ignore[method-assign]
        blocks, [bytes(len(content)) for content in contents]
    )
    served.ask(make_request(9, prompt(1)))
    served.check()
    counts = served.tiers.counts
    assert counts.canaries == before.canaries + 1
    assert (counts.faults, counts.loaded_blocks) == (1, before.loaded_blocks)


def test_a_canary_reads_no_more_of_a_long_load_than_of_a_short_one() -> None:
    """All steps wait for it."""
    served = Served(LIMITS._replace(num_blocks=64, max_sequences=4), keeps_all=True, canary_every=1)
    served.ask(*[make_request(number, prompt(number, 150)) for number in range(1, 6)])
    read, num_read = served.runner.read_blocks, list[int]()

    def counting(blocks: Any) -> Any:
        num_read.append(len(blocks))
        return read(blocks)

    before = served.tiers.counts
    runner = served.runner
    only = SimpleNamespace(read_blocks=counting, write_blocks=runner.write_blocks, block_bytes=runner.block_bytes)
    served.tiers._arrivals._runner = only  # type: ignore[assignment]
    served.ask(make_request(9, prompt(1, 150)))
    served.check()
    assert served.tiers.counts.loaded_blocks - before.loaded_blocks > CANARY_BLOCKS
    assert num_read == [CANARY_BLOCKS]


@pytest.mark.parametrize(
    "fault",
    [
        "flipped",
        "full",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("swapped", "truncated", "gone", "clock")),
    ],
)
def test_every_fault_is_a_miss_and_a_count_and_no_answer_changes(tmp_path: Path, fault: str, monkeypatch: Any) -> None:
    """200 prompts that share beginnings, two rounds and a restart."""
    clock = itertools.count(10**9, -7) if fault == "clock" else None
    if clock is not None:
        monkeypatch.setattr(disk_module.time, "time", lambda: float(next(clock)))
    stems = [prompt(number, 24) for number in range(40)]
    requests = [make_request(1000 + number, (*stems[number % 40], number % VOCAB_SIZE)) for number in range(200)]
    tier = DiskTier(tmp_path, 1 << 20)
    served = Served(disk=tier, host=2000)
    if fault == "full":
        break_writes(tier)
    for request in requests:
        served.ask(request)
    served.check()
    faults = served.tiers.counts.faults
    assert faults >= (fault == "full")
    assert fault == "full" or (faults == 0 and served.tiers.counts.loaded_blocks > 100)
    served.close()
    damage(tmp_path, fault)
    again = Served(disk=DiskTier(tmp_path, 1 << 20), host=2000)
    for request in requests:
        again.ask(request)
    again.check()
    if fault in ("flipped", "swapped", "truncated", "gone"):
        assert again.tiers.counts.faults
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= 1 << 20
    again.close()


def break_writes(tier: DiskTier) -> None:
    """As a disk without room does: a part is written, then an error comes."""
    opened: Callable[[int], Any] = tier._open

    class Full:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, data: bytes) -> None:
            self._file.write(data[: len(data) // 2])
            raise OSError(28, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    tier._open = lambda num_more: Full(opened(num_more))  # type: ignore[method-assign,assignment,return-value]


def damage(folder: Path, fault: str) -> None:
    for segment in folder.rglob("*.kv"):
        data = bytearray(segment.read_bytes())
        if fault == "flipped":
            for place in range(0, len(data), 501):
                data[place] ^= 16
        elif fault == "swapped":
            half = len(data) // 2
            data = data[half:] + data[:half]
        elif fault == "truncated":
            data = data[: len(data) // 3]
        if fault == "gone":
            os.unlink(segment)
        else:
            segment.write_bytes(data)


def test_blocks_of_another_adapter_salt_or_model_are_never_found(tmp_path: Path) -> None:
    served = Served(disk=DiskTier(tmp_path, 1 << 20), keeps_all=True)
    for number in range(1, 6):
        served.ask(make_request(number, prompt(number)))
    loaded = served.tiers.counts.loaded_blocks
    served.ask(make_request(10, prompt(1), salt="other"))
    served.ask(make_request(11, prompt(1), adapter="other"))
    assert served.tiers.counts.loaded_blocks == loaded
    served.ask(make_request(12, prompt(1)))
    assert served.tiers.counts.loaded_blocks > loaded
    served.close()
    another = Served(disk=DiskTier(tmp_path, 1 << 20), keeps_all=True)
    another.tiers.store.format = b"another model..."
    another.ask(make_request(13, prompt(1)))
    assert another.tiers.counts.loaded_blocks == 0
    another.close()


@pytest.mark.slow
def test_a_day_of_conversations(tmp_path: Path) -> None:
    """24 hours of virtual time: sessions come, pause and come back. Every answer is right; the disk never holds more than it
    may, host memory neither, and the process does not grow."""
    bound, host = 200_000, 20_000
    numbers = random.Random(5)
    served = Served(SMALL._replace(num_blocks=40), disk=DiskTier(tmp_path, bound), host=host)
    served.tiers.departures.ghosts = Ghosts(2000)  # soon full: what grows later is a leak
    said: dict[int, tuple[int, ...]] = {}
    resident: list[int] = []
    now, ids = 0.0, itertools.count(1)
    while now < 24 * 3600:
        now += numbers.expovariate(1 / 20)
        user = numbers.randrange(60)
        before = said.get(user, prompt(user, 12))
        asked = before if len(before) < 90 else prompt(numbers.randrange(10**6), 12)
        request = make_request(next(ids), asked, max_tokens=numbers.choice((2, 6)), arrival_s=now)
        served.ask(request)
        served.check()
        answer = served.answers.pop((request.request_id, 0))
        del served.requests[request.request_id]
        said[user] = (*asked, *answer.tokens, numbers.randrange(VOCAB_SIZE))
        if now >= 3600 * (len(resident) + 1):
            expected.cache_clear()
            gc.collect()
            resident.append(resident_bytes())
        if not request.request_id % 10:
            assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= bound
        assert served.tiers.store.host.num_bytes <= host
    assert served.tiers.counts.faults == 0
    assert served.tiers.counts.loaded_blocks > 1000
    served.close()
    print("MiB by hour:", [round(size / 2**20, 1) for size in resident])
    assert max(resident[4:]) - resident[3] <= 4 << 20, "4,000 names of blocks that are worth keeping, of at most 65,536"


def test_a_fetch_whose_request_left_changes_nothing(tmp_path: Path) -> None:
    """Cancelled at every point of a load: nobody is answered twice, nothing is held."""
    for point in range(4):
        served = Served(disk=DiskTier(tmp_path / str(point), 1 << 20), host=1, keeps_all=True)
        served.ask(*[make_request(number, prompt(number)) for number in range(1, 6)])
        told: list[FetchedBlocks] = []
        request = make_request(9, prompt(1))
        assert served.tiers.fetch(request, told.append) or point < 0  # type: ignore[arg-type]
        if point == 0:
            assert served.tiers.cancel(9) is request
        served.tiers.store.reader.submit(int).result()
        if point == 1:
            assert served.tiers.cancel(9) is request
        ready = served.tiers.take(told[0])
        assert ready == (() if point < 2 else (request,))
        assert served.tiers.cancel(9) is None
        served.engine.check()
        assert not served.tiers.is_fetching
        served.close()


def test_what_had_no_room_when_it_came_is_loaded_when_it_is_admitted() -> None:
    served = Served(keeps_all=True)
    for number in range(1, 7):
        served.ask(make_request(number, prompt(number)))
    before = served.tiers.counts.loaded_blocks
    served.ask(*[make_request(10 + number, prompt(number)) for number in range(1, 7)])
    served.check()
    hits = [served.answers[10 + number, 0].prefix for number in range(1, 7)]
    assert sum(hit.host for hit in hits if hit is not None) >= 4 * 32
    assert served.tiers.counts.loaded_blocks - before >= 4 * 8


@pytest.mark.parametrize("runner", [Counting, SlowCounting])
def test_what_left_the_device_while_its_request_waited_is_loaded_when_it_is_admitted(runner: type[Counting]) -> None:
    """The device has all of a prompt when it comes, and others push it out before its turn."""
    served = Served(SMALL._replace(max_sequences=1), keeps_all=True, runner=runner)
    served.ask(make_request(1, prompt(1)))
    others = [make_request(number, prompt(number)) for number in range(2, 6)]
    served.ask(*others, make_request(9, prompt(1)))
    served.check()
    hit = served.answers[9, 0].prefix
    assert hit is not None
    assert (hit.num_tokens, hit.host) == (32, 32)
    assert not served.scheduler.num_waiting


def test_waiting_requests_for_the_same_blocks_have_one_late_load() -> None:
    """Three wait for rows; when these are free, one of them is loaded for and the others wait for that load."""
    served = Served(SMALL._replace(num_blocks=64), keeps_all=True, runner=SlowCounting)
    served.ask(make_request(1, prompt(1), max_tokens=4))
    served.ask(*[make_request(number, prompt(number), max_tokens=4) for number in range(40, 70)])
    before = served.tiers.counts
    first = [make_request(number, prompt(number, 6), max_tokens=6) for number in range(20, 24)]
    served.ask(*first, *[make_request(number, (*prompt(1), number), max_tokens=4) for number in range(30, 33)])
    served.check()
    counts = served.tiers.counts
    assert counts.loaded_blocks - before.loaded_blocks == 8
    assert counts.attached - before.attached <= 2, "on a busy machine one may come when it is there already"
    assert [served.answers[number, 0].prefix.num_tokens for number in range(30, 33)] == [32] * 3


@pytest.mark.parametrize("runner", [Counting, SlowCounting])
def test_conversations_that_do_not_fit_are_loaded_once_a_turn_and_not_computed_again(runner: type[Counting]) -> None:
    """24 users come back at once over a pool that holds six: what is loaded is there when it is needed."""
    limits = SMALL._replace(num_blocks=6 * 14, max_sequences=24)
    served = Served(limits, runner=runner, keeps_all=True)
    served.tiers.rates.write_bytes_s = 1e12
    served.tiers.rates.note_write = lambda *_: None  # type: ignore[method-assign]
    said = {user: prompt(user, 40) for user in range(24)}
    for turn in range(4):
        before = served.runner.num_computed
        requests = [make_request(100 * turn + user + 1, said[user], max_tokens=2) for user in said]
        served.ask(*requests)
        for request, user in zip(requests, said):
            said[user] = (*said[user], *served.answers[request.request_id, 0].tokens, turn, user)
        computed = served.runner.num_computed - before
        assert turn == 0 or computed < 0.4 * sum(len(request.prompt) for request in requests)
    served.check()
    needed = 3 * 24 * 12
    assert served.tiers.counts.loaded_blocks < 1.2 * needed


def test_a_load_that_repeats_nothing_copies_nothing() -> None:
    served = Served()
    for number in range(1, 20):
        served.ask(make_request(number, prompt(number)))
    served.check()
    assert served.scheduler.pool.num_evictions
    assert served.tiers.counts.stored_blocks == 0
