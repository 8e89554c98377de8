"""What is kept for clients ends with its time: responses after a number of days, files when they said they would."""

import asyncio
import logging

from penstock.errors import StoreError
from penstock.service.server.jobs.service import Jobs
from penstock.service.server.responses.kept import KeptResponses

LOGGER = logging.getLogger(__name__)

PERIOD_S = 600.0


async def keep_house(jobs: Jobs, kept: KeptResponses, retention_s: float) -> None:
    """Until cancelled. A disk that cannot be written to now is tried again the next time."""
    while True:
        try:
            await asyncio.to_thread(jobs.expire)
            await kept.forget(retention_s)
        except StoreError as error:
            LOGGER.warning("what is past its time could not be deleted: %s", error)
        await asyncio.sleep(PERIOD_S)
