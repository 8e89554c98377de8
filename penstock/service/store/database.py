"""What is kept between runs: one database, one writer, a schema with versions.

SQLite in WAL mode here; `postgres.py` has the same face for several processes on several machines. A component (keys, usage,
jobs, responses) brings its own `Schema`, and hands over functions of a `Transaction`; it never sees a connection. SQL keeps to
what both databases understand: `?` for values, TEXT, BIGINT, DOUBLE PRECISION and BLOB as types, INSERT ... ON CONFLICT.
Knows nothing of what is kept.
"""

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.errors import ConfigError, StoreError

T = TypeVar("T")

BUSY_S = 3.0
"""How long another process may keep us from writing."""
MAX_GROUP = 256
"""Writes that share one commit."""


class Schema(NamedTuple):
    """The tables of one component. `versions[k]` holds the statements that lead from version k to k + 1; never edit one that
    was released, add the next.
    """

    name: str
    versions: tuple[tuple[str, ...], ...]


class Transaction:
    """Statements that happen together or not at all."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Returns how many rows it changed."""
        return int(self._run(sql, values).rowcount)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return list(self._run(sql, values).fetchall())

    def _run(self, sql: str, values: Sequence[Any]) -> Any:
        return self._connection.execute(sql, tuple(values))


Work = Callable[[Transaction], T]


def rows_as(transaction: Transaction, kind: Callable[..., T], sql: str, values: Sequence[Any] = ()) -> list[T]:
    """What is found, each row as a value of this kind, whose fields are the columns."""
    return [kind(*row) for row in transaction.rows(sql, values)]


def row_as(transaction: Transaction, kind: Callable[..., T], sql: str, values: Sequence[Any] = ()) -> T | None:
    """The first that is found."""
    return next(iter(rows_as(transaction, kind, sql, values)), None)


def insert(transaction: Transaction, table: str, values: Sequence[Any], rest: str = "") -> int:
    """A row, in the order of the table's columns; returns whether there is one more. `rest` ends the statement. A table that
    versions of us share at a time names its columns: `audit (at, who)`; a newer one may have more."""
    return transaction.run(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))}) {rest}", values)


class StoreJob(NamedTuple):
    work: Work[Any]
    done: "Future[Any]"


Jobs = queue.SimpleQueue[StoreJob | None]


class Database:
    """Threads that take work from queues, each until it finds None. Futures are of `concurrent.futures`: wait with `result()`,
    or on an event loop with `asyncio.wrap_future`.
    """

    def __init__(self, writes: Jobs, reads: Jobs) -> None:
        self._writes = writes
        self._reads = reads
        self._is_closed = False
        self._threads: list[tuple[threading.Thread, Jobs]] = []

    def write(self, work: Work[T]) -> "Future[T]":
        """Run it in a transaction that is committed when the future is done. What it raises undoes all of it."""
        return self._hand_over(self._writes, work)

    def read(self, work: Work[T]) -> "Future[T]":
        """Run it on one consistent view; it must not write."""
        return self._hand_over(self._reads, work)

    def close(self) -> None:
        """What was handed over before is done first."""
        if not self._is_closed:
            self._is_closed = True
            for _, jobs in self._threads:
                jobs.put(None)
            for thread, _ in self._threads:
                thread.join()

    def _start(self, name: str, jobs: Jobs, run: Callable[..., None], *values: Any) -> None:
        thread = threading.Thread(target=run, args=values, name=name, daemon=True)
        self._threads.append((thread, jobs))
        thread.start()

    def _hand_over(self, jobs: Jobs, work: Work[T]) -> "Future[T]":
        if self._is_closed:
            raise StoreError("the database is closed; nothing more is kept")
        done: Future[T] = Future()
        jobs.put(StoreJob(work, done))
        return done


async def reading(database: Database, work: Callable[..., T], *values: Any) -> T:
    """What a function of a transaction and these values reads."""
    return await asyncio.wrap_future(database.read(lambda transaction: work(transaction, *values)))


async def writing(database: Database, work: Callable[..., T], *values: Any) -> T:
    """The same where something is written: it is committed."""
    return await asyncio.wrap_future(database.write(lambda transaction: work(transaction, *values)))


class SqliteDatabase(Database):
    """A thread writes and a thread reads; writes that wait together are committed together."""

    def __init__(self, path: Path | str, schemas: Sequence[Schema]) -> None:
        """Makes the file, readable by its owner alone, and brings its tables up to date. Raises ConfigError."""
        self._path = Path(path)
        super().__init__(Jobs(), Jobs())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
            writer = self._connect()
            for schema in schemas:
                with _transaction(writer, "BEGIN IMMEDIATE"):
                    migrate(Transaction(writer), schema)
            reader = self._connect()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"cannot keep a database in {self._path}: {error}; choose another path") from error
        self._start("store-write", self._writes, self._write_all, writer)
        self._start("store-read", self._reads, self._read_all, reader)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _write_all(self, connection: sqlite3.Connection) -> None:
        with contextlib.closing(connection):
            is_over = False
            while not is_over and (job := self._writes.get()) is not None:
                group = [job]
                with contextlib.suppress(queue.Empty):
                    while len(group) < MAX_GROUP and (more := self._writes.get_nowait()) is not None:
                        group.append(more)
                    is_over = len(group) < MAX_GROUP
                _commit(connection, group)

    def _read_all(self, connection: sqlite3.Connection) -> None:
        with contextlib.closing(connection):
            while (job := self._reads.get()) is not None:
                if not job.done.set_running_or_notify_cancel():
                    continue
                try:
                    with _transaction(connection, "BEGIN"):
                        found = job.work(Transaction(connection))
                except BaseException as error:
                    job.done.set_exception(_reported(error))
                else:
                    job.done.set_result(found)


def migrate(transaction: Transaction, schema: Schema) -> None:
    """Bring one component's tables up to date, whoever made them."""
    transaction.run("CREATE TABLE IF NOT EXISTS penstock_schema (name TEXT PRIMARY KEY, version BIGINT NOT NULL)")
    found = transaction.rows("SELECT version FROM penstock_schema WHERE name = ?", (schema.name,))
    version = int(found[0][0]) if found else 0
    if version > len(schema.versions):
        raise ConfigError(
            f"the database holds version {version} of {schema.name!r} and this Penstock knows {len(schema.versions)}; "
            "run the newer Penstock that made it"
        )
    for statements in schema.versions[version:]:
        for statement in statements:
            transaction.run(statement)
    rest = "ON CONFLICT (name) DO UPDATE SET version = excluded.version"
    insert(transaction, "penstock_schema", (schema.name, len(schema.versions)), rest)


def _commit(connection: sqlite3.Connection, group: Sequence[StoreJob]) -> None:
    """One commit for all; each is undone alone if it fails, and none is reported before the commit."""
    outcomes: list[tuple[StoreJob, Any, BaseException | None]] = []
    jobs = [job for job in group if job.done.set_running_or_notify_cancel()]
    try:
        with _transaction(connection, "BEGIN IMMEDIATE"):
            for job in jobs:
                connection.execute("SAVEPOINT job")
                try:
                    outcomes.append((job, job.work(Transaction(connection)), None))
                except BaseException as error:
                    connection.execute("ROLLBACK TO job")
                    outcomes.append((job, None, _reported(error)))
                connection.execute("RELEASE job")
    except sqlite3.Error as error:
        outcomes = [(job, None, _reported(error)) for job in jobs]
    for job, found, fault in outcomes:
        if fault is None:
            job.done.set_result(found)
        else:
            job.done.set_exception(fault)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Any:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _reported(error: BaseException) -> BaseException:
    if isinstance(error, sqlite3.Error):
        return StoreError(f"the database cannot be used: {error}; look at its disk and whoever else writes to it")
    return error
