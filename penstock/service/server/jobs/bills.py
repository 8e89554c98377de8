"""Bills for a gateway: of batches, of responses made in the background, of answers whose client left.

Written here, where tokens are made; the gateway that reserved money for them fetches them and says which it has written down.
"""

import logging
from concurrent.futures import Future

import msgspec
from starlette.requests import Request

from penstock.errors import StoreError
from penstock.service.marks import TokenBound
from penstock.service.server.calls.call import Call
from penstock.service.server.calls.generation import Caller
from penstock.service.server.calls.usage import usage_of
from penstock.service.server.http.answer import Json
from penstock.service.server.http.exchange import exchange_of
from penstock.service.store import bills as tables
from penstock.service.store.bills import AccountRow, Bill
from penstock.service.store.database import Database, Transaction, Work, reading, writing

LOGGER = logging.getLogger(__name__)
MAX_BILLS = 1000
"""Told at a time."""


class TakenBody(msgspec.Struct, kw_only=True):
    """Bills that are written down elsewhere."""

    taken: list[str]


class Bills:
    def __init__(self, database: Database) -> None:
        self.database = database

    def for_call(self, caller: Caller, model: str, call: Call) -> None:
        """Of an answer that its client did not wait for."""
        if not caller.account:
            return
        usage = usage_of(call)
        bill = bill_of(account_row("", caller), f"{caller.account}.call", model, *usage[:3], is_last=True)
        self._write(lambda transaction: tables.add_bill(transaction, bill))

    def for_response(self, caller: Caller, response_id: str, model: str, call: Call | None) -> None:
        """Of a response made in the background, however it ended."""
        if not caller.account:
            return
        counts = usage_of(call)[:3] if call is not None else (0, 0, 0)
        bill = bill_of(account_row(response_id, caller), response_id, model, *counts, is_last=True)
        self._write(lambda transaction: tables.add_bill(transaction, bill, response_id))

    async def open(self, job: str, caller: Caller) -> None:
        """Before its client hears of it: who pays for what a job makes."""
        if caller.account:
            await writing(self.database, tables.open_account, account_row(job, caller))

    async def payer(self, job: str, tenant: str) -> Caller:
        """Who asked for a job that an earlier run accepted."""
        row = await reading(self.database, tables.account_of, job)
        if row is None:
            return Caller(tenant=tenant)
        most = TokenBound(row.num_prompt, row.num_output) if row.is_bounded else None
        return Caller(tenant=tenant, most=most, account=row.account)

    def _write(self, work: Work[None]) -> None:
        try:
            self.database.write(work).add_done_callback(_written)
        except StoreError as error:
            LOGGER.warning("a bill is lost: %s", error)


def _written(done: "Future[None]") -> None:
    if done.exception() is not None:
        LOGGER.warning("a bill is lost: %s", done.exception())


def account_row(job: str, caller: Caller) -> AccountRow:
    most = caller.most or TokenBound(0, 0)
    owner = caller.tenant.partition("/")[0]  # the key that its requests come with: tenants of a gateway share one
    return AccountRow(job, owner, caller.account, int(caller.most is not None), *most)


def bill_of(
    row: AccountRow, bill_id: str, model: str, num_prompt: int, num_cached: int, num_output: int, *, is_last: bool
) -> Bill:
    return Bill(bill_id, row.owner, row.account, model, num_prompt, num_cached, num_output, int(is_last))


def last_bill(transaction: Transaction, job: str) -> None:
    """The job is over, and so is what is paid for it."""
    row = tables.account_of(transaction, job)
    if row is not None:
        tables.add_bill(transaction, bill_of(row, f"{job}.last", "", 0, 0, 0, is_last=True), job)


async def list_bills(request: Request) -> Json:
    bills: Bills = request.app.state.bills
    owner = exchange_of(request.scope).tenant
    rows = await reading(bills.database, tables.bills_of, owner, MAX_BILLS)
    return Json({"object": "list", "data": [row._asdict() for row in rows]})


async def take_bills(request: Request) -> Json:
    bills: Bills = request.app.state.bills
    owner = exchange_of(request.scope).tenant
    body, _ = await request.app.state.front.bodies.read(request, TakenBody, {})
    await writing(bills.database, tables.take_bills, owner, body.taken[:MAX_BILLS])
    return Json({"object": "list", "data": []})
