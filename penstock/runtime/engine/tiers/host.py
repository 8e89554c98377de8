"""Records in host memory, within a bound: those not used for longest leave first."""

from collections import OrderedDict

from penstock.runtime.engine.tiers.record import KVRecord


class HostTier:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._records: OrderedDict[bytes, KVRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: bytes) -> bool:
        return key in self._records

    def get(self, key: bytes) -> KVRecord | None:
        record = self._records.get(key)
        if record is not None:
            self._records.move_to_end(key)
        return record

    def put(self, key: bytes, record: KVRecord) -> list[tuple[bytes, KVRecord]]:
        """Keep a record; returns those that had to leave for it, itself where it is too large."""
        if record.num_bytes > self.max_bytes:
            return [(key, record)]
        self.drop(key)
        self._records[key] = record
        self.num_bytes += record.num_bytes
        left = []
        while self.num_bytes > self.max_bytes:
            old, least = self._records.popitem(last=False)
            self.num_bytes -= least.num_bytes
            left.append((old, least))
        return left

    def drop(self, key: bytes) -> None:
        record = self._records.pop(key, None)
        if record is not None:
            self.num_bytes -= record.num_bytes

    def drain(self) -> list[tuple[bytes, KVRecord]]:
        """Everything, the least used first; the tier is empty afterwards."""
        records = list(self._records.items())
        self._records.clear()
        self.num_bytes = 0
        return records
