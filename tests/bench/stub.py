"""A small server of our own that misbehaves as told: it answers like OpenAI's, one word a token, in the loop of its test."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

TEMPLATE_TOKENS = 5
BLOCK = 16


@dataclass
class Stub:
    """`async with Stub(...) as stub:` serves on `stub.url`."""

    token_s: float = 0.0
    first_s: float = 0.0
    fails_every: int = 0
    """Every so many-th generation is answered with a 500."""
    breaks_every: int = 0
    """Every so many-th stream ends in the middle."""
    stalls_at: int = 0
    """With this generation, and for a while, no more bytes are sent to anyone."""
    stalls_s: float = 1.0
    dies_at: int = 0
    """With this generation every connection breaks, and no other is taken."""
    capacity: int | None = None
    """Generations at once; the others queue."""
    short_by: int = 0
    tokens_a_word: int = 1
    """What usage counts, whatever /tokenize says."""
    has_tokenizer: bool = True
    has_usage: bool = True
    """At the end of a stream."""
    counts_whole: bool = False
    """Answers that are not streamed tell usage."""
    tokenizer: tuple[str, str] = ("/tokenize", "prompt")
    """Its route, and the field that holds the text."""
    has_metrics: bool = True
    takes_ignore_eos: bool = True
    takes_token_ids: bool = True
    words_a_piece: int = 1
    reasoning_words: int = 0
    is_split: bool = False
    """Every byte is sent by itself."""
    closes: bool = False
    """The connection is closed after every answer."""
    num_others: int = 0
    """Requests of others that appear in the metrics with each of ours."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_connections: int = 0

    async def __aenter__(self) -> "Stub":
        self._counts: Counter[str] = Counter()
        self._blocks: set[tuple[Any, ...]] = set()
        self._slots = asyncio.Semaphore(self.capacity or 1_000_000)
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._open: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in [*self._open]:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.num_connections += 1
        try:
            while await self._one(reader, writer) and not self.closes:
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.headers.append(headers)
        data = json.loads(body) if body else {}
        path = first.split()[1]
        if path in ("/v1/chat/completions", "/v1/completions"):
            return await self._generate(data, path, writer)
        status, answer = self._plain(path, data)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        await self._send(writer, f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
        return True

    def _plain(self, path: str, data: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "stub"}]}
        route, name = self.tokenizer
        if path == route and name in data and self.has_tokenizer:
            tokens = data[name].replace(".", " .").replace(",", " ,").replace("!", " !").split()
            return 200, {"tokens": [hash(token) % 10_000 for token in tokens]}
        if path == "/metrics" and self.has_metrics:
            names = ("prefix_cache_hits", "prefix_cache_queries", "request_success")
            return 200, "".join(f'vllm:{name}_total{{a="b"}} {self._counts[name]}\n' for name in names)
        return 404, {"error": {"message": "no such route"}}

    async def _generate(self, data: dict[str, Any], path: str, writer: asyncio.StreamWriter) -> bool:
        self.bodies.append(data)
        number = len(self.bodies)
        if number == self.stalls_at:
            self._is_free.clear()
            asyncio.get_running_loop().call_later(self.stalls_s, self._is_free.set)
        if number == self.dies_at:
            self._server.close()
            for task in self._open - {asyncio.current_task()}:
                task.cancel()
            return False
        if not self.takes_ignore_eos and "ignore_eos" in data:
            return await self._refuse(writer, 400, "unknown field ignore_eos")
        prompt = data["prompt"] if "prompt" in data else " ".join(one["content"] for one in data["messages"])
        if isinstance(prompt, list) and not self.takes_token_ids:
            return await self._refuse(writer, 400, "prompt must be text")
        if self.fails_every and number % self.fails_every == 0:
            return await self._refuse(writer, 500, "the boiler is out")
        if self.counts_whole and not data.get("stream"):
            words = len(prompt if isinstance(prompt, list) else prompt.split()) * self.tokens_a_word
            usage = {"prompt_tokens": words + (TEMPLATE_TOKENS if "messages" in data else 0), "completion_tokens": 1}
            return await self._answer(writer, 200, {"usage": usage})
        async with self._slots:
            await self._stream(data, path, prompt, writer, number)
        return not self._is_broken(number)

    def _is_broken(self, number: int) -> bool:
        return bool(self.breaks_every and number % self.breaks_every == 0)

    async def _refuse(self, writer: asyncio.StreamWriter, status: int, message: str) -> bool:
        return await self._answer(writer, status, {"error": {"message": message}})

    async def _answer(self, writer: asyncio.StreamWriter, status: int, data: dict[str, Any]) -> bool:
        text = json.dumps(data)
        await self._send(writer, f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
        return True

    async def _stream(
        self, data: dict[str, Any], path: str, prompt: Any, writer: asyncio.StreamWriter, number: int
    ) -> None:
        is_chat = path.startswith("/v1/chat")
        words = prompt if isinstance(prompt, list) else prompt.split()
        num_prompt = len(words) * self.tokens_a_word + (TEMPLATE_TOKENS if is_chat else 0)
        self._look_up(words)
        asked = data.get("max_tokens", data.get("max_completion_tokens"))
        total = max(asked - self.short_by, 1)
        await self._send(
            writer, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
        )
        if is_chat:
            await self._event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(self.first_s)
        for start in range(0, total, self.words_a_piece):
            text = "word " * min(self.words_a_piece, total - start)
            if start and self.token_s:
                await asyncio.sleep(self.token_s)
            if self._is_broken(number) and start:
                return
            name = "reasoning_content" if start < self.reasoning_words else "content"
            choice = {"delta": {name: text}} if is_chat else {"text": text}
            await self._event(writer, {"choices": [choice]})
        reason = "length" if total == asked else "stop"
        await self._event(writer, {"choices": [{"delta": {}, "text": "", "finish_reason": reason}]})
        if self.has_usage and data.get("stream_options", {}).get("include_usage"):
            await self._event(
                writer, {"choices": [], "usage": {"prompt_tokens": num_prompt, "completion_tokens": total}}
            )
        self._counts["request_success"] += 1 + self.num_others
        await self._event(writer, None)
        await self._send(writer, b"0\r\n\r\n")

    def _look_up(self, words: list[Any]) -> None:
        """As a prefix cache would, in blocks of whole prefixes."""
        self._counts["prefix_cache_queries"] += len(words)
        for end in range(BLOCK, len(words) + 1, BLOCK):
            if tuple(words[:end]) in self._blocks:
                self._counts["prefix_cache_hits"] += BLOCK
            self._blocks.add(tuple(words[:end]))

    async def _event(self, writer: asyncio.StreamWriter, data: Any) -> None:
        text = f"data: {'[DONE]' if data is None else json.dumps(data)}\n\n".encode()
        await self._send(writer, b"%x\r\n%b\r\n" % (len(text), text))

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._is_free.wait()
        for part in (data[i : i + 1] for i in range(len(data))) if self.is_split else (data,):
            writer.write(part)
            if self.is_split:
                await asyncio.sleep(0)
        await writer.drain()
