"""What the routes of files and batches share: where they are kept, and who works on batches."""

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field
from functools import partial

from penstock.errors import StoreError
from penstock.service.server.responses.kept import KeptResponses
from penstock.service.server.responses.routes import Responses
from penstock.service.store import jobs as tables
from penstock.service.store.jobs import BatchRow
from penstock.service.store.storage import Storage

LOGGER = logging.getLogger(__name__)

PERIOD_S = 600.0


@dataclass(slots=True)
class Jobs:
    """Batches that are open are worked on by `runner`, which knows them by this object alone."""

    responses: Responses
    storage: Storage
    open_batches: dict[str, BatchRow] = field(default_factory=dict)
    """Jobs that are not over, as they were accepted."""

    @staticmethod
    def new_id(prefix: str) -> str:
        return prefix + secrets.token_hex(12)

    def is_in_use(self, file_id: str) -> bool:
        return any(row.input_file == file_id for row in self.open_batches.values())

    def tidy(self) -> None:
        """Delete files that are past their time, and those that nobody was told of. Blocks; before anything is accepted."""
        self.expire()
        database, blobs = self.storage.database, self.storage.blobs
        for name in blobs.names() - database.read(tables.all_file_ids).result():
            blobs.delete(name)

    def expire(self) -> None:
        """Delete files that are past their time. Blocks."""
        database = self.storage.database
        for file_id in database.read(lambda transaction: tables.expired_files(transaction, time.time())).result():
            if not self.is_in_use(file_id):
                database.write(partial(tables.delete_file, file_id=file_id)).result()
                self.storage.blobs.delete(file_id)


async def keep_house(jobs: Jobs, kept: KeptResponses, retention_s: float) -> None:
    """What is kept for clients ends with its time: files when they said they would, responses after a number of days.

    Until cancelled. A disk that cannot be written to now is tried again the next time."""
    while True:
        try:
            await asyncio.to_thread(jobs.expire)
            await kept.forget(retention_s)
        except StoreError as error:
            LOGGER.warning("what is past its time could not be deleted: %s", error)
        await asyncio.sleep(PERIOD_S)
