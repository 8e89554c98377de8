"""A replica that lies: it says that it is ready and serves the model, and answers whatever is asked with rubbish, status 200.

    python -m benchmarks.gateway.liar PORT MODEL

It prints how many answers it gave when it is told to end.
"""

import asyncio
import itertools
import json
import signal
import sys

PAGE = b"<!doctype html><title>Welcome to nginx!</title>"
LIES = (
    (b"text/html", PAGE),
    (b"application/json", b'{"ok": true}'),
    (b"application/json", b'{"choices": [{"index": 0, "message": {"content": "half'),
    (b"text/event-stream", b"Service temporarily unavailable"),
    (b"text/event-stream", b""),
    (b"text/plain", b"OK"),
)


def whole(kind: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nx-penstock-trust: 1\r\ncontent-length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


async def main(port: int, model: str) -> None:
    lies = itertools.count()
    told = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal told
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length: " in head else 0
                await reader.readexactly(size)
                if head.startswith(b"post"):
                    told += 1
                    writer.write(whole(*LIES[next(lies) % len(LIES)]))
                elif b"/metrics" in head:
                    writer.write(whole(b"text/plain", b"vllm:num_requests_waiting 0\n"))
                else:
                    data = {"status": "ready", "object": "list", "data": [{"id": model}]}
                    writer.write(whole(b"application/json", json.dumps(data).encode()))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await ending.wait()
    print(told, flush=True)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
