"""A network that does what networks do: connections through it are cut, held up, or changed, by a script drawn from a seed."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

PART_BYTES = 4096
FAULTS = ("none", "none", "none", "reset request", "reset answer", "stall", "corrupt request")


class HostileProxy:
    """Each connection suffers one fault. Which one, a client learns from the order in which it connected."""

    def __init__(self, host: str, port: int, seed: int) -> None:
        self.host, self.port = host, port
        self.suffered: Counter[str] = Counter()
        self._random = Random(seed)
        self._relays: set[asyncio.Task[None]] = set()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self._random.choice(FAULTS)
        self.suffered[fault] += 1
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        ends = [writer]
        try:
            there, back = await asyncio.open_connection(self.host, self.port)
            ends.append(back)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass_on(reader, back, fault, "request"))
                ways.create_task(self._pass_on(there, writer, fault, "answer"))
        except* OSError:
            pass
        finally:
            self._relays.discard(task)
            for end in ends:
                end.close()

    async def close(self) -> None:
        relays = tuple(self._relays)
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        await asyncio.sleep(0)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, fault: str, way: str) -> None:
        left = self._random.randrange(20, 2000)
        while part := await source.read(PART_BYTES):
            if fault == f"reset {way}":
                part = part[:left]
                left -= len(part)
            if fault == f"corrupt {way}":
                place = self._random.randrange(len(part))
                part = part[:place] + bytes([part[place] ^ (1 << self._random.randrange(8))]) + part[place + 1 :]
            if fault == "stall":
                await asyncio.sleep(self._random.random() * 0.2)
            target.write(part)
            await target.drain()
            if fault == f"reset {way}" and left <= 0:
                target.transport.abort()
                raise ConnectionResetError
        target.close()
        raise ConnectionResetError  # one side has said its last: the other side's words would reach nobody


@contextlib.asynccontextmanager
async def hostile_proxy(url: str, seed: int) -> AsyncIterator[tuple[str, HostileProxy]]:
    """The address of a proxy before a server, and what its clients suffer."""
    host, port = url.removeprefix("http://").split(":")
    proxy = HostileProxy(host, int(port), seed)
    server = await asyncio.start_server(proxy.relay, "127.0.0.1", 0)
    async with server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", proxy
        finally:
            await proxy.close()
