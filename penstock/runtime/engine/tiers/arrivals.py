"""Records on their way to blocks of the device: `arriving` in the pool until the copy is over, found by nobody before."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from penstock.runtime.core.prefix import packed
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import BlockCopy, BlockRunner, CopyingRunner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.tiers.news import ArrivedBlocks, InboundBlocks, holding_of
from penstock.runtime.engine.tiers.record import KVRecord

CANARY_BLOCKS = 4
"""Of a load, its first and last among them: the engine's thread waits for them."""
OnLand = Callable[[InboundBlocks, bool, float], None]
"""Told what has arrived, whether it is there, and the seconds of the transfer."""


class LandingBlocks:
    """Belongs to the engine's thread; `waiter` waits for copies."""

    def __init__(
        self, scheduler: Scheduler, runner: BlockRunner, waiter: Executor, on_land: OnLand, canary_every: int = 0
    ) -> None:
        """A few blocks of one load in `canary_every` are read back from the device and compared before anybody may find it; of
        none if that is 0."""
        self._scheduler, self._pool = scheduler, scheduler.pool
        self._runner = runner
        self._waiter = waiter
        self._on_land = on_land
        self._canary_every = canary_every
        self.before_write: Callable[[], None] = lambda: None
        """Called when blocks have been taken and before anything is written to them."""
        self.put: Callable[[ArrivedBlocks], object] = self.land
        """Brings news of a copy to the engine's thread."""
        self.number = 0
        """Of the latest."""
        self.num_canaries = 0
        """Loads that were read back and compared."""
        self.coming: dict[bytes, int] = {}
        """By hash, the arrival that brings it."""
        self._under_way: dict[int, InboundBlocks] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def is_of(self, record: KVRecord, request: Request, place: int) -> bool:
        """A record is whole, and that of block number `place` of a prompt."""
        size = self._pool.block_size
        is_whole = len(record.kv) == self._runner.block_bytes
        return is_whole and record.tokens == packed(request.prompt[place * size : (place + 1) * size])

    def begin(
        self,
        request: Request,
        tokens: Sequence[int],
        records: tuple[KVRecord, ...],
        num_host: int = 0,
        *,
        was_preempted: bool = False,
    ) -> bool:
        """Write records to blocks for the last of these tokens, all of them or none; False if it is over already. Blocks that
        have come meanwhile are left as they are."""
        holding = holding_of(request, (*tokens, 0))
        blocks = self._pool.arrive(holding, spare=self._scheduler.num_running)
        if not blocks or len(blocks) > len(records):
            if holding.blocks:  # all of them are there, or what they continue has left the device
                self._pool.land(holding, is_whole=False)
            return False
        self.before_write()
        number = self.number = self.number + 1
        records = records[len(records) - len(blocks) :]
        num_host = min(num_host, len(blocks))
        self._under_way[number] = InboundBlocks(request, holding, blocks, records, num_host, was_preempted)
        self.coming.update({record.hash: number for record in records})
        contents = [record.kv for record in records]
        begun = time.monotonic()
        if not isinstance(self._runner, CopyingRunner):
            self._runner.write_blocks(blocks, contents)
            self.land(ArrivedBlocks(number, True, time.monotonic() - begun))
            return False
        self._waiter.submit(self._wait, number, self._runner.begin_write(blocks, contents), begun)
        return True

    def _wait(self, number: int, copy: BlockCopy, begun: float) -> None:
        is_whole = False
        try:
            copy.wait()
            is_whole = True
        finally:
            seconds = time.monotonic() - begun if copy.seconds is None else copy.seconds
            self.put(ArrivedBlocks(number, is_whole, seconds))

    def land(self, arrived: ArrivedBlocks) -> InboundBlocks:
        """Publish what has arrived, if it did."""
        inbound = self._under_way.pop(arrived.number)
        self.coming = {hash: number for hash, number in self.coming.items() if number != arrived.number}
        is_whole = arrived.is_whole and self._is_same(arrived.number, inbound)
        self._pool.land(inbound.holding, is_whole=is_whole)
        self._on_land(inbound, is_whole, arrived.seconds)
        return inbound

    def _is_same(self, number: int, inbound: InboundBlocks) -> bool:
        """The canary: what lies on the device is what was to be written."""
        if not self._canary_every or number % self._canary_every:
            return True
        self.num_canaries += 1
        blocks, records = inbound.blocks, inbound.records
        count = min(len(blocks), CANARY_BLOCKS)
        places = [place * (len(blocks) - 1) // max(count - 1, 1) for place in range(count)]
        read = self._runner.read_blocks([blocks[place] for place in places])
        return all(mine == bytes(records[place].kv) for mine, place in zip(read, places, strict=True))
