"""A data directory: the database, and the files beside it."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.service.store.blobs import BlobStore
from penstock.service.store.database import Database, Schema, SqliteDatabase


@dataclass(frozen=True, slots=True)
class Storage:
    database: Database
    blobs: BlobStore
    temporary: "tempfile.TemporaryDirectory[str] | None" = None
    """Where it all lies if it is to be forgotten with us."""

    def close(self) -> None:
        self.database.close()
        if self.temporary is not None:
            self.temporary.cleanup()


def open_storage(directory: Path | None, schemas: Sequence[Schema]) -> Storage:
    """What is kept in a directory; without one, for as long as we run. Raises ConfigError."""
    temporary = None
    if directory is None:
        temporary = tempfile.TemporaryDirectory(prefix="penstock-")
        directory = Path(temporary.name)
    return Storage(SqliteDatabase(directory / "penstock.db", schemas), BlobStore(directory / "files"), temporary)
