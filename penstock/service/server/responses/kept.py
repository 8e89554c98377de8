"""Responses and conversations that are kept: found again by their ids, by whoever made them.

What has been handed to the database is found at once, also while it is still being written.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from penstock.service.server.http.faults import ApiError, not_found
from penstock.service.server.responses.protocol import Item
from penstock.service.store import responses as tables
from penstock.service.store.database import Database, Transaction, reading, writing
from penstock.service.store.responses import ConversationRow, ResponseRow

LOGGER = logging.getLogger(__name__)

Fields = dict[str, Any]


class KeptResponses:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._unwritten: dict[tuple[str, str], ResponseRow] = {}

    # Responses

    def put(self, tenant: str, response: Fields, items: Sequence[Item], body: bytes = b"") -> "Future[None]":
        """`body` is what was asked, of a response that is to be made in the background."""
        row = ResponseRow(
            id=response["id"],
            tenant=tenant,
            created_s=int(response["created_at"]),
            status=response["status"],
            value=msgspec.json.encode(response).decode(),
            input=msgspec.json.encode(items).decode(),
            body=body.decode(),
        )
        self._unwritten[row.tenant, row.id] = row
        future = self._database.write(lambda transaction: tables.put_response(transaction, row))
        future.add_done_callback(lambda done: self._written(row, done))
        return future

    async def get(self, response_id: str, tenant: str) -> ResponseRow:
        row = self._unwritten.get((tenant, response_id))
        if row is None:
            row = await reading(self._database, tables.response_of, response_id, tenant)
        if row is None:
            raise _missing("response", response_id)
        return row

    async def delete(self, response_id: str, tenant: str) -> None:
        if not await writing(self._database, tables.delete_response, response_id, tenant):
            raise _missing("response", response_id)

    async def unfinished(self) -> list[ResponseRow]:
        """Background responses that an earlier run did not end."""
        return await reading(self._database, tables.unfinished_responses)

    async def forget(self, max_age_s: float) -> None:
        await writing(self._database, tables.forget_responses, time.time() - max_age_s)

    # Conversations

    async def put_conversation(self, row: ConversationRow, items: Sequence[Item] = ()) -> None:
        def work(transaction: Transaction) -> None:
            tables.put_conversation(transaction, row)
            tables.add_items(transaction, row.id, _values(items))

        await writing(self._database, work)

    async def conversation(self, conversation_id: str, tenant: str) -> ConversationRow:
        row = await reading(self._database, tables.conversation_of, conversation_id, tenant)
        if row is None:
            raise _missing("conversation", conversation_id)
        return row

    async def delete_conversation(self, conversation_id: str) -> None:
        await writing(self._database, tables.delete_conversation, conversation_id)

    async def items(self, conversation_id: str) -> list[Item]:
        texts = await writing(self._database, tables.items_of, conversation_id)
        return [msgspec.json.decode(text) for text in texts]

    def add_items(self, conversation_id: str, items: Sequence[Item]) -> "Future[None]":
        return self._database.write(lambda transaction: tables.add_items(transaction, conversation_id, _values(items)))

    async def delete_item(self, conversation_id: str, item_id: str) -> None:
        if not await writing(self._database, tables.delete_item, conversation_id, item_id):
            raise _missing("item", item_id)

    def _written(self, row: ResponseRow, done: "Future[None]") -> None:
        if self._unwritten.get((row.tenant, row.id)) is row:
            self._unwritten.pop((row.tenant, row.id), None)
        error = done.exception()
        if error is not None:
            LOGGER.warning("response %s is not kept: %s", row.id, error)


def _values(items: Sequence[Item]) -> list[tuple[str, str]]:
    return [(str(item["id"]), msgspec.json.encode(item).decode()) for item in items]


def _missing(kind: str, name: str) -> ApiError:
    return not_found(f"there is no {kind} {name[:80]!r}; it was deleted, not stored, or is another key's")
