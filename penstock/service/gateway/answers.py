"""Answers that may be given again to an equal question of the same tenant: a bounded memory, opt-in. Told the time."""

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple


class KeptAnswer(NamedTuple):
    status: int
    headers: bytes
    body: bytes
    until_s: float


class AnswerCache:
    def __init__(self, max_bytes: int, keep_s: float) -> None:
        self._max_bytes = max_bytes
        self._keep_s = keep_s
        self._kept: OrderedDict[bytes, KeptAnswer] = OrderedDict()
        self._num_bytes = 0
        self.num_hits = 0

    @staticmethod
    def key(tenant: str, path: str, model: str, body: bytes) -> bytes:
        """Of the question, and of who may see its answer."""
        hasher = blake2b(digest_size=16, person=b"penstock.answer")
        for part in (tenant.encode(), path.encode(), model.encode("utf-8", "replace"), body):
            hasher.update(len(part).to_bytes(8, "little") + part)
        return hasher.digest()

    def find(self, key: bytes, now: float) -> KeptAnswer | None:
        kept = self._kept.get(key)
        if kept is None or kept.until_s <= now:
            return None
        self._kept.move_to_end(key)
        self.num_hits += 1
        return kept

    def keep(self, key: bytes, status: int, headers: bytes, body: bytes, now: float) -> None:
        self._forget(key)
        self._kept[key] = KeptAnswer(status, headers, body, now + self._keep_s)
        self._num_bytes += len(headers) + len(body)
        while self._num_bytes > self._max_bytes and self._kept:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: bytes) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._num_bytes -= len(kept.headers) + len(kept.body)
