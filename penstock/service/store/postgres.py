"""The same face on PostgreSQL: several processes on several machines share what is kept.

Every piece of work is a transaction of its own on one of a few connections; a row that two of them change is changed by one
after the other, which the database sees to. Work that the database breaks off because of others (serialization, deadlock) is
done again.
"""

from collections.abc import Sequence
from typing import Any

from penstock.errors import ConfigError, StoreError
from penstock.service.store.database import Database, Jobs, Schema, Transaction, migrate

NUM_CONNECTIONS = 4
MAX_TRIES = 5
CONNECT_S = 3
"""To a database that says nothing."""
MIGRATION_LOCK = 0x70656E73
"""Two processes that start together bring the tables up to date one after the other."""


class PostgresTransaction(Transaction):
    """In the database's own words."""

    def _run(self, sql: str, values: Sequence[Any]) -> Any:
        return self._connection.execute(translated(sql), tuple(values))


class PostgresDatabase(Database):
    """Needs psycopg: pip install 'penstock[postgres]'."""

    def __init__(self, url: str, schemas: Sequence[Schema]) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise ConfigError(
                "a postgresql:// database needs a package that is not installed; pip install 'penstock[postgres]'"
            ) from error
        self._psycopg = psycopg
        self._url = url
        super().__init__(jobs := Jobs(), jobs)
        try:
            with psycopg.connect(url, connect_timeout=10) as connection:
                connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
                for schema in schemas:
                    migrate(PostgresTransaction(connection), schema)
        except psycopg.Error as error:
            raise ConfigError(f"cannot use the PostgreSQL database: {str(error).strip()}") from error
        for number in range(NUM_CONNECTIONS):
            self._start(f"store-{number}", jobs, self._work)

    def _work(self) -> None:
        connection: Any = None
        while (job := self._writes.get()) is not None:
            work, done = job
            if not done.set_running_or_notify_cancel():
                continue
            for number in range(MAX_TRIES):
                is_open = connection is not None and not connection.closed
                try:
                    if not is_open:
                        connection = self._psycopg.connect(self._url, connect_timeout=CONNECT_S)
                        is_open = True
                    with connection.transaction():
                        found = work(PostgresTransaction(connection))
                    done.set_result(found)
                    break
                except self._psycopg.errors.OperationalError as error:  # lost, or broken off because of others
                    if number == MAX_TRIES - 1 or not is_open:  # who waits is told at once that it is away
                        done.set_exception(_store_error(error))
                        break
                except BaseException as error:
                    done.set_exception(_store_error(error) if isinstance(error, self._psycopg.Error) else error)
                    break
        if connection is not None:
            connection.close()


def translated(sql: str) -> str:
    """From what both databases understand to PostgreSQL's own words."""
    return sql.replace("%", "%%").replace("?", "%s").replace(" BLOB", " BYTEA")


def _store_error(error: BaseException) -> StoreError:
    return StoreError(f"the database cannot be used: {str(error).strip()}; look at it and at the way there")
