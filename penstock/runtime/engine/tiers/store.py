"""Records of one format behind the device: in host memory, then on a disk, which has a thread of its own."""

from collections.abc import Iterable
from concurrent.futures import Executor

from penstock.runtime.engine.tiers.disk import DiskTier
from penstock.runtime.engine.tiers.host import HostTier
from penstock.runtime.engine.tiers.news import TierCounts
from penstock.runtime.engine.tiers.record import KVRecord, key_of


class TierStore:
    """Blocks are asked for by hash. All but `read` and `write` belongs to the engine's thread; those to the reader's."""

    def __init__(self, format: bytes, host: HostTier, disk: DiskTier | None, reader: Executor) -> None:
        self.format = format
        self.host, self.disk = host, disk
        self.reader = reader
        self._counts = TierCounts()

    def __contains__(self, hash: bytes) -> bool:
        return any(self.places(hash))

    def places(self, hash: bytes) -> tuple[bool, bool]:
        """Whether host memory and the disk have a block."""
        key = key_of(self.format, hash)
        return key in self.host, self.disk is not None and key in self.disk

    @property
    def counts(self) -> TierCounts:
        counts, disk = self._counts, self.disk
        if disk is not None:
            counts = counts._replace(disk_bytes=disk.num_bytes, faults=counts.faults + disk.num_faults)
        return counts._replace(host_bytes=self.host.num_bytes)

    def count(self, **more: int) -> None:
        counts = self._counts
        self._counts = counts._replace(**{name: getattr(counts, name) + count for name, count in more.items()})

    def held(self, hash: bytes) -> KVRecord | None:
        """What host memory has."""
        return self.host.get(key_of(self.format, hash))

    def keep(self, records: Iterable[KVRecord]) -> None:
        """In host memory; what has to leave it for them goes to the disk."""
        self._to_disk([left for one in records for left in self.host.put(key_of(self.format, one.hash), one)])

    def drop(self, hashes: Iterable[bytes]) -> None:
        keys = [key_of(self.format, hash) for hash in hashes]
        for key in keys:
            self.host.drop(key)
        if self.disk is not None and keys:
            self.reader.submit(self.disk.drop, keys)

    def read(self, hash: bytes) -> KVRecord | None:
        """What the disk has, verified."""
        return None if self.disk is None else self.disk.get(key_of(self.format, hash), hash)

    def write(self, records: Iterable[KVRecord]) -> None:
        """To the disk at once."""
        if self.disk is not None:
            self.disk.put([(key_of(self.format, record.hash), record) for record in records])

    def close(self) -> None:
        """All that host memory has goes to the disk."""
        if self.disk is not None:
            self._to_disk(self.host.drain())
            self.reader.submit(self.disk.close).result()
        self.reader.shutdown()

    def _to_disk(self, records: list[tuple[bytes, KVRecord]]) -> None:
        if self.disk is not None and records:
            self.reader.submit(self.disk.put, records)
