"""Conversations that come back: what of each lies where, kept for a while after a turn, given out and taken in as one file.

A session is what a client names (`prompt_cache_key`, a conversation, the response it continues), of one tenant. After a turn
its blocks stay on the device for the seconds in which agents come back, within the tenant's share, and are worth a copy when
they leave it.
"""

import json
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from penstock.errors import PenstockError
from penstock.runtime.core.batch import Delta
from penstock.runtime.core.blocks import BlockPool, Match
from penstock.runtime.core.prefix import Holding, Namespace, block_hash, unpacked
from penstock.runtime.core.request import Request
from penstock.runtime.engine.tiers.record import KVRecord, decode_record, encode_record, key_of

RETAIN_S = 60.0
"""After a turn; a tool that was called has answered by then, mostly."""
RETAINED_FRACTION = 0.25
"""Of the pool that sessions of all tenants may keep so; each tenant has an equal share."""
MAX_SESSIONS = 1024
MAGIC = b"PKVSESSION1\n"
_SIZE = struct.Struct("<I")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120}")


class CacheOrder(NamedTuple):
    """What an operator wants done: list, pin, drop, export or import."""

    order_id: int
    action: str
    name: str = ""
    seconds: float = 0.0


class SessionFacts(NamedTuple):
    """Tokens of a session in all, and how many of them lie where; a token may lie in several places."""

    name: str
    tenant: str
    num_tokens: int
    device: int
    host: int
    disk: int
    idle_s: float


class CacheAnswer(NamedTuple):
    order_id: int
    error: str = ""
    sessions: tuple[SessionFacts, ...] = ()
    file: str = ""
    """Where an export lies, on the engine's machine."""


@dataclass
class KeptSession:
    tenant: str
    name: str
    namespace: Namespace
    tokens: list[int]
    used_s: float
    hashes: list[bytes] = field(default_factory=list)

    @property
    def holding(self) -> Holding:
        holding = Holding([*self.tokens, 0], self.namespace)
        holding.hashes = list(self.hashes)
        return holding


class SessionBook:
    """Belongs to the engine's thread."""

    def __init__(
        self, pool: BlockPool, format: bytes, folder: Path | None, want: Callable[[Iterable[bytes]], None]
    ) -> None:
        self._pool = pool
        self._format = format
        self._folder = None if folder is None else folder / "exports"
        self._want = want
        self._open: dict[int, KeptSession] = {}
        self._kept: OrderedDict[tuple[str, str], KeptSession] = OrderedDict()

    def begin(self, request: Request, hashes: list[bytes]) -> None:
        """`hashes`: of the blocks of its prompt."""
        if request.session:
            namespace = Namespace(request.salt, request.adapter)
            self._open[request.request_id] = KeptSession(
                request.tenant, request.session, namespace, list(request.prompt), 0.0, list(hashes)
            )

    def follow(self, deltas: tuple[Delta, ...], now: float) -> None:
        """Answers grow; a turn that ends leaves its blocks for the next."""
        for delta in deltas if self._open else ():
            session = self._open.get(delta.request_id)
            if session is not None and not delta.choice:
                session.tokens.extend(delta.token_ids)
                if delta.finish is not None:
                    del self._open[delta.request_id]
                    self._end(session, now)

    def _end(self, session: KeptSession, now: float) -> None:
        session.used_s = now
        match = self.keep(session)
        self._want(session.hashes)
        if self._has_room(session, now):
            self._pool.pin(match, now + RETAIN_S)

    def keep(self, session: KeptSession) -> Match:
        """Remember a session; an earlier turn of it, under whatever name, is part of it. Returns what is cached of it."""
        holding = session.holding
        match = self._pool.match(holding)
        session.hashes = holding.hashes
        names = set(session.hashes)
        for key, other in list(self._kept.items()):
            if other.tenant == session.tenant and other.hashes and other.hashes[-1] in names:
                del self._kept[key]
        self._kept[session.tenant, session.name] = session
        while len(self._kept) > MAX_SESSIONS:
            self._kept.popitem(last=False)
        return match

    def _has_room(self, session: KeptSession, now: float) -> bool:
        """The tenant may keep its blocks on the device, besides those that it keeps there already."""
        recent = [one for one in self._kept.values() if now - one.used_s < RETAIN_S]
        tenants = {one.tenant for one in recent} | {session.tenant}
        most = int(self._pool.num_blocks * RETAINED_FRACTION) // len(tenants) - len(session.hashes)
        taken: set[bytes] = set()
        for one in reversed(recent[:-1]):
            if len(taken) > most:
                break
            if one.tenant == session.tenant:
                taken.update(one.hashes)
        return len(taken) <= most

    def find(self, name: str) -> KeptSession:
        """By its name, or by tenant and name."""
        found = [one for one in self._kept.values() if name in (one.name, f"{one.tenant}/{one.name}")]
        if not found:
            raise PenstockError(f"no session {name!r} is known; requests name theirs with prompt_cache_key")
        if len(found) > 1:
            raise PenstockError(f"{len(found)} tenants have a session {name!r}; name it TENANT/NAME")
        return found[0]

    def facts(self, has: Callable[[bytes], tuple[bool, bool]], now: float) -> tuple[SessionFacts, ...]:
        """`has` tells whether host memory and the disk have a block."""
        size, found = self._pool.block_size, []
        for one in reversed(self._kept.values()):
            places = [has(hash) for hash in one.hashes]
            found.append(
                SessionFacts(
                    one.name,
                    one.tenant,
                    len(one.tokens),
                    size * sum(hash in self._pool.published for hash in one.hashes),
                    size * sum(host for host, _ in places),
                    size * sum(disk for _, disk in places),
                    round(max(now - one.used_s, 0.0), 1),
                )
            )
        return tuple(found)

    def pin(self, name: str, until_s: float) -> None:
        session = self.find(name)
        self._want(session.hashes)
        self._pool.pin(self._pool.match(session.holding), until_s)

    def drop(self, name: str) -> list[bytes]:
        """Forget a session; returns the hashes that tiers are to drop."""
        session = self.find(name)
        self._pool.retract(session.holding, 0)
        del self._kept[session.tenant, session.name]
        return session.hashes

    # Files

    def path(self, name: str) -> Path:
        if self._folder is None:
            raise PenstockError("sessions are exported to and imported from the --kv-disk folder; serve with --kv-disk")
        stem = name if name.endswith(".kv") else f"{name.replace('/', '-')}.kv"
        if not _FILE_NAME.fullmatch(stem):
            raise PenstockError(f"{name!r} is no name of a file; use letters, digits, - and _")
        return self._folder / stem

    def write(self, session: KeptSession, records: Iterable[KVRecord | None]) -> str:
        """Write a session's records, as many as there are from the first on; returns where."""
        path = self.path(session.name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        head = {
            "format": self._format.hex(),
            "tenant": session.tenant,
            "name": session.name,
            "salt": session.namespace.salt,
            "adapter": session.namespace.adapter,
            "tail": session.tokens[len(session.hashes) * self._pool.block_size :],
        }
        with partial.open("wb") as file:
            file.write(MAGIC)
            _write_part(file, json.dumps(head).encode())
            for record in records:
                if record is None:
                    break
                _write_part(file, encode_record(key_of(self._format, record.hash), record))
        partial.replace(path)
        return str(path)

    def read(self, name: str, now: float) -> tuple[KeptSession, list[KVRecord]]:
        """Raises PenstockError for a file of another format, and for one that is damaged."""
        path = self.path(name)
        try:
            with path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise PenstockError(f"{path} holds no session")
                parts = _parts(file)
                head = json.loads(next(parts))
                if head["format"] != self._format.hex():
                    raise PenstockError(f"{path} was made by another model, KV format or block size")
                namespace = Namespace(str(head["salt"]), str(head["adapter"]))
                records = self._chained(namespace, parts, path)
        except (OSError, ValueError, LookupError, StopIteration) as error:
            raise PenstockError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
        tokens = [token for record in records for token in unpacked(record.tokens)]
        session = KeptSession(str(head["tenant"]), str(head["name"]), namespace, [*tokens, *head["tail"]], now)
        return session, records

    def _chained(self, namespace: Namespace, parts: Iterator[bytes], path: Path) -> list[KVRecord]:
        """Every record continues the one before it."""
        records: list[KVRecord] = []
        parent = namespace.hash
        for data in parts:
            begin = 24
            hash = data[begin : begin + 16]
            record = decode_record(key_of(self._format, hash), hash, data)
            if record is None or block_hash(parent, record.tokens) != hash:
                raise PenstockError(f"{path} is damaged: record {len(records)} is not what it says")
            records.append(record)
            parent = hash
        return records


def _write_part(file: BinaryIO, data: bytes) -> None:
    file.write(_SIZE.pack(len(data)))
    file.write(data)


def _parts(file: BinaryIO) -> Iterator[bytes]:
    while head := file.read(_SIZE.size):
        size = _SIZE.unpack(head)[0]
        data = file.read(size)
        if len(data) != size:
            raise ValueError("it ends too early")
        yield data
