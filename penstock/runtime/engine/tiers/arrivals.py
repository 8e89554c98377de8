"""Records on their way to blocks of the device: `arriving` in the pool until the copy is over, found by nobody before."""

import time
from collections.abc import Callable
from concurrent.futures import Executor

from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.runner import BlockCopy, BlockRunner, CopyingRunner
from penstock.runtime.engine.tiers.news import ArrivedBlocks, InboundBlocks
from penstock.runtime.engine.tiers.policy import Rates
from penstock.runtime.engine.tiers.record import KVRecord
from penstock.runtime.engine.tiers.store import TierStore

CANARY_BLOCKS = 4
"""Of a load, its first and last among them: the engine's thread waits for them."""


class LandingBlocks:
    """Belongs to the engine's thread; `waiter` waits for copies."""

    def __init__(
        self,
        pool: BlockPool,
        runner: BlockRunner,
        waiter: Executor,
        store: TierStore,
        rates: Rates,
        *,
        before_write: Callable[[], None],
        on_land: Callable[[InboundBlocks, bool], None],
        canary_every: int,
    ) -> None:
        """A few blocks of one load in `canary_every` are read back from the device and compared before anybody may find it.
        `on_land` is told what has arrived, and whether it is there."""
        self._pool = pool
        self._runner = runner
        self._waiter = waiter
        self._store = store
        self._rates = rates
        self._before_write, self._on_land = before_write, on_land
        self._canary_every = canary_every
        self.put: Callable[[ArrivedBlocks], object] = self.land
        """Brings news of a copy to the engine's thread."""
        self.number = 0
        """Of the latest."""
        self.coming: dict[bytes, int] = {}
        """By hash, the arrival that brings it."""
        self._under_way: dict[int, InboundBlocks] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, inbound: InboundBlocks) -> bool:
        """Write records to their blocks; False if it is over already."""
        self._before_write()
        number = self.number = self.number + 1
        self._under_way[number] = inbound
        self.coming.update({record.hash: number for record in inbound.records})
        contents = [record.kv for record in inbound.records]
        begun = time.monotonic()
        if not isinstance(self._runner, CopyingRunner):
            self._runner.write_blocks(inbound.blocks, contents)
            self.land(ArrivedBlocks(number, True, time.monotonic() - begun))
            return False
        copy = self._runner.begin_write(inbound.blocks, contents)
        self._waiter.submit(self._wait, number, copy, begun)
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
        blocks, records, num_host = inbound.blocks, inbound.records, inbound.num_host
        self.coming = {hash: number for hash, number in self.coming.items() if number != arrived.number}
        is_whole = arrived.is_whole and self._is_same(arrived.number, blocks, records)
        self._pool.land(inbound.holding, is_whole=is_whole)
        if is_whole:
            self._rates.note_write(sum(record.num_bytes for record in records), arrived.seconds)
            num_swapped = inbound.was_preempted * len(blocks)
            self._store.count(loaded_blocks=len(blocks), host_blocks=num_host, swapped_blocks=num_swapped)
            self._store.keep(records[num_host:])
        else:
            self._store.count(faults=1)
        self._on_land(inbound, is_whole)
        return inbound

    def _is_same(self, number: int, blocks: tuple[int, ...], records: tuple[KVRecord, ...]) -> bool:
        """The canary: what lies on the device is what was to be written."""
        if number % self._canary_every:
            return True
        self._store.count(canaries=1)
        count = min(len(blocks), CANARY_BLOCKS)
        places = [place * (len(blocks) - 1) // max(count - 1, 1) for place in range(count)]
        read = self._runner.read_blocks([blocks[place] for place in places])
        return all(mine == bytes(records[place].kv) for mine, place in zip(read, places, strict=True))
