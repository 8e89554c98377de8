"""Laws of what is kept: all or nothing, one writer, versions that only go up, nothing lost by a close."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError, StoreError
from penstock.service.store.database import Schema, SqliteDatabase, Transaction

COUNTERS = Schema("counters", (("CREATE TABLE counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",),))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    made = SqliteDatabase(tmp_path / "kept.db", [COUNTERS])
    yield made
    made.close()


def count(name: str) -> object:
    def work(transaction: Transaction) -> int:
        transaction.run(
            "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = counters.value + 1", (name,)
        )
        return int(transaction.rows("SELECT value FROM counters WHERE name = ?", (name,))[0][0])

    return work


def value(database: SqliteDatabase, name: str) -> int:
    rows = database.read(lambda t: t.rows("SELECT value FROM counters WHERE name = ?", (name,))).result()
    return int(rows[0][0]) if rows else 0


def test_writes_of_many_threads_are_all_there_and_see_each_other(database: SqliteDatabase) -> None:
    seen: list[int] = []

    def spend() -> None:
        futures = [database.write(count("a")) for _ in range(50)]
        seen.extend(future.result() for future in futures)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 401))
    assert value(database, "a") == 400


def test_a_write_that_fails_is_undone_alone(database: SqliteDatabase) -> None:
    def bad(transaction: Transaction) -> None:
        transaction.run("INSERT INTO counters VALUES ('b', 1)")
        raise ValueError("mine")

    good, failed, wrong, after = (
        database.write(count("a")),
        database.write(bad),
        database.write(lambda t: t.run("INSERT INTO nowhere VALUES (1)")),
        database.write(count("a")),
    )
    assert (good.result(), after.result()) == (1, 2)
    with pytest.raises(ValueError, match="mine"):
        failed.result()
    with pytest.raises(StoreError, match="nowhere"):
        wrong.result()
    assert value(database, "b") == 0


def test_what_was_handed_over_before_a_close_is_kept(tmp_path: Path) -> None:
    first = SqliteDatabase(tmp_path / "kept.db", [COUNTERS])
    for _ in range(1000):
        first.write(count("a"))
    first.close()
    with pytest.raises(StoreError, match="closed"):
        first.write(count("a"))
    second = SqliteDatabase(tmp_path / "kept.db", [COUNTERS])
    assert value(second, "a") == 1000
    second.close()


def test_two_processes_worth_of_writers_do_not_lose_each_others_writes(tmp_path: Path) -> None:
    one, two = (SqliteDatabase(tmp_path / "kept.db", [COUNTERS]) for _ in range(2))
    futures = [side.write(count("a")) for _ in range(200) for side in (one, two)]
    assert sorted(future.result() for future in futures) == list(range(1, 401))
    one.close()
    two.close()


def test_a_later_version_keeps_the_rows_and_an_earlier_program_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    first = SqliteDatabase(path, [COUNTERS])
    first.write(count("a")).result()
    first.close()
    later = Schema("counters", (*COUNTERS.versions, ("ALTER TABLE counters ADD COLUMN note TEXT",)))
    second = SqliteDatabase(path, [later])
    assert second.read(lambda t: t.rows("SELECT name, value, note FROM counters")).result() == [("a", 1, None)]
    second.close()
    with pytest.raises(ConfigError, match="newer Penstock"):
        SqliteDatabase(path, [COUNTERS])


def test_a_version_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    SqliteDatabase(path, [COUNTERS]).close()
    broken = Schema("counters", (*COUNTERS.versions, ("CREATE TABLE more (a TEXT)", "CREATE TABLE more (a TEXT)")))
    with pytest.raises(ConfigError):
        SqliteDatabase(path, [broken])
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version FROM penstock_schema").fetchall() == [(1,)]
        assert not connection.execute("SELECT name FROM sqlite_master WHERE name = 'more'").fetchall()
    connection.close()
    SqliteDatabase(path, [COUNTERS]).close()


def test_only_its_owner_reads_the_file_and_no_database_is_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept.db"
    SqliteDatabase(path, []).close()
    assert path.stat().st_mode & 0o077 == 0
    (tmp_path / "text.db").write_text("this is no database, however long one reads it" * 100)
    with pytest.raises(ConfigError, match=r"text\.db"):
        SqliteDatabase(tmp_path / "text.db", [COUNTERS])
