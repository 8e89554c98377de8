"""The prefix cache as a router may know it: a stream of what can be found there, and the blocks of one prompt.

The engine is followed once there is a listener, and not before. A listener that does not keep up is sent everything again.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from penstock.metrics.exposition import Counter
from penstock.runtime.core.prefix import Namespace, prefix_hashes
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.engine.client import FAULTS, BlocksChanged, EngineClient, TransferCounts
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.service import kv_events
from penstock.service.server.calls.call import Call, Failure
from penstock.service.server.http.answer import Parts, Plain
from penstock.service.server.http.connection import until_gone
from penstock.service.server.http.faults import error_of_finish

MAX_UNSENT_BYTES = 1 << 20
"""Of changes for one listener, before it is sent everything instead."""
FIRST_S = 2.0
"""For an engine to tell what it has, the first time."""
LOOK_S = 0.5
"""Between two looks at whether the server goes on."""
TRANSFERS = (
    ("num_fetches", "penstock_kv_transfer_fetches", "Fetches of a prompt's blocks from another engine that have ended"),
    ("fetched_blocks", "penstock_kv_transfer_blocks", "Blocks of other engines laid into this cache"),
    ("moved_blocks", "penstock_kv_transfer_moved_blocks", "Those of them that were computed for a request of ours"),
    ("fetched_bytes", "penstock_kv_transfer_bytes", "Bytes of records received"),
    ("fetch_s", "penstock_kv_transfer_seconds", "Seconds of receiving them, waits left out"),
    ("declined_blocks", "penstock_kv_transfer_declined_blocks", "Blocks computed because fetching was slower"),
    ("offered_blocks", "penstock_kv_transfer_offered_blocks", "Blocks handed out to other engines"),
    ("refused_peers", "penstock_kv_transfer_refused_peers", "Peers that did not know the key or meant another engine"),
    ("shared_peers", "penstock_kv_transfer_shared_peers", "Peers that read from memory shared with them"),
)
"""Counted by the engine: field, name and meaning."""


class BlockIndex:
    """Hashes of the blocks that one engine can find. Empty until there is a subscriber; lives on one event loop."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._hashes: set[bytes] = set()
        self._is_known = asyncio.Event()
        self._listeners: set[BlockListener] = set()

    def subscribe(self, listener: "BlockListener") -> None:
        if self._client.on_blocks is None:
            self._client.follow_blocks(self._take_in)
        self._listeners.add(listener)

    def unsubscribe(self, listener: "BlockListener") -> None:
        self._listeners.discard(listener)

    @property
    def whole(self) -> bytes:
        return b"".join(self._hashes)

    async def wait(self) -> None:
        """Until the engine has told what there is, or has no mind to."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S if self._client.is_ready else 0.0):
                await self._is_known.wait()

    def _take_in(self, news: BlocksChanged) -> None:
        published = kv_events.split(news.published)
        if news.is_whole:
            self._hashes = set(published)
        else:
            self._hashes.update(published)
            self._hashes.difference_update(kv_events.split(news.removed))
        self._is_known.set()
        for listener in self._listeners:
            listener.take(news)


class BlockListener:
    """One router's stream over all models of the server."""

    def __init__(self, indices: list[BlockIndex]) -> None:
        self._indices = indices
        self._unsent: list[tuple[bytes, bytes]] = []
        self._num_unsent = 0
        self._is_behind = True
        self._number = 0
        self._news = asyncio.Event()
        self._news.set()

    def take(self, news: BlocksChanged) -> None:
        self._num_unsent += len(news.published) + len(news.removed)
        if news.is_whole or self._num_unsent > MAX_UNSENT_BYTES:
            self._is_behind = True
        if not self._is_behind:
            self._unsent.append((news.published, news.removed))
        self._news.set()

    async def next(self) -> bytes:
        """Frames that were not sent yet; empty if there was nothing for a while."""
        try:
            async with asyncio.timeout(LOOK_S):
                await self._news.wait()
        except TimeoutError:
            return b""
        self._news.clear()
        unsent, self._unsent, self._num_unsent = self._unsent, [], 0
        if self._is_behind:
            self._is_behind = False
            return self._frame(True, b"".join(index.whole for index in self._indices), b"")
        return b"".join(self._frame(False, *change) for change in unsent)

    def _frame(self, is_whole: bool, published: bytes, removed: bytes) -> bytes:
        self._number += 1
        return kv_events.frame(is_whole, self._number, published, removed)


async def block_events(request: Request) -> Parts:
    """All there is; who follows is told until it leaves or the server ends."""
    headers = [(b"content-type", b"application/octet-stream"), (b"cache-control", b"no-store")]
    return Parts(_frames(request.app.state.front, follows=request.query_params.get("follow") == "1"), headers)


async def _frames(front: Any, *, follows: bool) -> AsyncGenerator[bytes, None]:
    indices = [model.blocks for model in front.models]
    listener = BlockListener(indices)
    for index in indices:
        index.subscribe(listener)
    try:
        for index in indices:
            await index.wait()
        yield await listener.next()
        while follows and not front.health.is_draining:
            if frames := await listener.next():
                yield frames
    finally:
        for index in indices:
            index.unsubscribe(listener)


def transfer_metrics(counts: TransferCounts | None) -> list[Counter]:
    """Blocks between this engine and its peers; nothing where it has none."""
    if counts is None:
        return []
    faults = Counter("penstock_kv_transfer_faults", "Fetches that ended badly, by how; what they lacked was computed")
    for name, count in zip(FAULTS, counts.faults, strict=True):
        faults.add(count, (("kind", name),))
    return [faults, *(Counter(name, help, getattr(counts, field)) for field, name, help in TRANSFERS)]


def offer_of(client: EngineClient, role: str | None) -> kv_events.BlockOffer | None:
    """What other replicas may fetch of an engine's blocks; None where it offers none."""
    facts, counts = client.facts, client.transfers
    if facts is None or not facts.offer:
        return None
    port, generation, block_bytes = facts.offer.split(" ")
    rates = (0.0, 0.0) if counts is None else (counts.prompt_tokens_s, counts.fetched_bytes_s)
    return kv_events.BlockOffer(
        role or "both", int(port), generation, int(block_bytes), facts.block_size, _place(facts.device), *rates
    )


def _place(device: str) -> str:
    """A device as one machine's processes tell theirs apart: processes held to cores of their own share none."""
    cores = sorted(os.sched_getaffinity(0)) if device == "cpu" and hasattr(os, "sched_getaffinity") else []
    return device if len(cores) in (0, os.cpu_count()) else f"{device}:{'-'.join(map(str, cores))}"


def prefilling(client: EngineClient, tokenizer: Tokenizer, call: Call) -> Call:
    """The same prompts, to be computed and not answered: the one token drawn is dropped."""
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    requests = [
        replace(request, params=sampling, pins=(), prediction=(), speculate=0, peer="") for request in call.requests
    ]
    return Call(client, tokenizer, requests, call.rules)


class PrefillAnswer:
    """Runs a call whose prompts another replica wants the blocks of; says no more than that they are there."""

    is_sent = True
    """No bill: the replica that answers has the prompt on its own."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        call = self._call
        call.start()
        leaving = asyncio.create_task(until_gone(receive))
        leaving.add_done_callback(lambda _: call.cancel())
        try:
            while not call.is_over:
                await call.news()
        except Failure as failure:
            raise error_of_finish(failure.finish, 1) from None
        finally:
            leaving.cancel()
            call.close()
        headers = [(b"content-length", b"0"), (kv_events.PREFILL_HEADER, b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def prompt_blocks(prompt: tuple[int, ...], salt: str, block_size: int) -> Plain:
    """In place of an answer: the hashes of those of a prompt's blocks that could be found in the cache."""
    hashes = prefix_hashes(prompt, Namespace(salt, ""), (len(prompt) - 1) // block_size, block_size)
    body = kv_events.prompt_blocks(len(prompt), hashes)  # one token at least is computed
    return Plain(body, "application/octet-stream", [(kv_events.BLOCKS_HEADER, b"1")])
