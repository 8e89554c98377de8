"""What requests cost, on the way to the database: in a journal first, so that neither an outage nor a kill loses any of it.

Every settlement has an id, and the database takes each once. While the database is away settlements wait in the journal, are
counted, and are written when it is back. What the journal has no room for is lost, counted and said.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import msgspec

from penstock.errors import StoreError
from penstock.service.gateway.accounts import budgets
from penstock.service.gateway.accounts.later import LaterRow, open_later
from penstock.service.gateway.accounts.usage import UsageRecord, insert_record
from penstock.service.store.database import Database, Transaction
from penstock.service.store.journal import Journal

LOGGER = logging.getLogger(__name__)
GROUP = 500
"""Settlements that are written together once the database is back."""


class Settlement(msgspec.Struct, frozen=True):
    """How a request ended: what it used, what of its reservation is spent, or who will say so later."""

    id: str
    records: tuple[UsageRecord, ...] = ()
    reservation: budgets.Reservation | None = None
    later: LaterRow | None = None


class UsageLedger:
    """`enter` on an event loop, `retry` on another thread; the database's own threads say what is written."""

    def __init__(self, database: Database, journal: Journal) -> None:
        self._database = database
        self._journal = journal
        self._is_away = bool(len(journal))  # what an earlier run left goes first
        self.num_lost = journal.num_damaged

    @property
    def num_unwritten(self) -> int:
        return len(self._journal)

    def enter(self, settlement: Settlement) -> None:
        if not self._journal.add(settlement.id, msgspec.json.encode(settlement).decode()):
            self.num_lost += 1
            if self.num_lost == 1 or self.num_lost % 1000 == 0:
                LOGGER.error("the journal is full: %d records of usage are lost", self.num_lost)
            return
        if self._is_away:
            return
        try:
            done = self._database.write(lambda transaction: write_settlement(transaction, settlement))
        except StoreError as error:
            self._note_away(error)
            return
        done.add_done_callback(lambda done: self._written(settlement.id, done))

    def retry(self) -> None:
        """Write what waits. Blocks; raises StoreError while the database is away."""
        num_written = 0
        while waiting := self._journal.first(GROUP) if self._is_away else []:
            some = [msgspec.json.decode(text, type=Settlement) for _, text in waiting]
            self._database.write(partial(_write_all, settlements=some)).result()
            self._journal.remove(*(one.id for one in some))
            num_written += len(some)
        if num_written:
            LOGGER.warning("the database is back: %d records of usage that waited are written", num_written)
        self._is_away = False

    def close(self) -> None:
        self._journal.close()

    def _written(self, settlement_id: str, done: "Future[None]") -> None:
        error = done.exception()
        if error is None:
            self._journal.remove(settlement_id)
        else:
            self._note_away(error)

    def _note_away(self, error: BaseException) -> None:
        if not self._is_away:
            self._is_away = True
            LOGGER.error("usage waits in the journal, the database does not take it: %s", error)


def write_settlement(transaction: Transaction, settlement: Settlement) -> None:
    """Once, however often it is asked for."""
    if settlement.later is not None:
        open_later(transaction, settlement.later)
        return
    if settlement.reservation is not None:
        budgets.settle(transaction, settlement.reservation, sum(record.cost for record in settlement.records))
    for record in settlement.records:
        insert_record(transaction, record)


def _write_all(transaction: Transaction, settlements: Sequence[Settlement]) -> None:
    for settlement in settlements:
        write_settlement(transaction, settlement)
