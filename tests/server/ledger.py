"""A client that writes down what it asked and how each call ended. Lost and wrong are judged from this alone."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.server.serving import Server, chat_text, user


@dataclass
class Ledger:
    """Every call ends in exactly one of complete, refused, failed; or it is lost."""

    complete: int = 0
    refused: list[httpx.Response] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Why calls failed."""
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    refusal_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    """When each call ended."""

    @property
    def failed(self) -> int:
        return len(self.faults)

    @property
    def count(self) -> int:
        return self.complete + len(self.refused) + self.failed + len(self.lost)

    async def ask(self, http: httpx.AsyncClient, content: str, *, stream: bool, n: int = 1, tokens: int = 12) -> None:
        body: dict[str, Any] = {"messages": user(content), "max_tokens": tokens, "n": n, "seed": 1, "stream": stream}
        start_s = time.monotonic()
        try:
            if stream:
                await self._ask_stream(http, content, body)
            else:
                response = await http.post("/v1/chat/completions", json=body)
                if response.status_code == 200:
                    texts = [choice["message"]["content"] for choice in response.json()["choices"]]
                    self._judge(content, texts, tokens)
                else:
                    self._refuse(response, start_s)
        except httpx.HTTPError as error:
            self.lost.append(f"{content}: {type(error).__name__}")
        self.ends_s.append(time.monotonic())

    async def _ask_stream(self, http: httpx.AsyncClient, content: str, body: dict[str, Any]) -> None:
        start_s = time.monotonic()
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                self._refuse(response, start_s)
                return
            texts = [""] * body["n"]
            num_ended = 0
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    self.faults.append(f"{content}: in the stream: {event['error']}")
                    return
                choice = event["choices"][0]
                texts[choice["index"]] += choice["delta"].get("content") or ""
                num_ended += choice["finish_reason"] is not None
            if num_ended == body["n"]:
                self._judge(content, texts, body["max_tokens"])
            else:
                self.lost.append(f"{content}: ended after {num_ended} finishes")

    def _refuse(self, response: httpx.Response, start_s: float) -> None:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        if response.status_code in (429, 503):
            self.refused.append(response)
            self.refusal_s.append(time.monotonic() - start_s)
        else:
            self.faults.append(f"{response.status_code}: {error}")

    def _judge(self, content: str, texts: list[str], tokens: int) -> None:
        self.complete += 1
        expected = [chat_text(content, tokens, choice=choice, seed=1) for choice in range(len(texts))]
        if texts != expected:
            self.wrong.append(content)


def http_of(server: Server, limit: int = 300) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=limit, max_keepalive_connections=limit)
    return httpx.AsyncClient(base_url=server.url, timeout=300.0, limits=limits, headers=server.headers, verify=False)


async def mixed_load(
    server: Server, ledger: Ledger, count: int, *, in_flight: int, seed: int, tokens: int = 12
) -> None:
    """Streams and whole answers, one choice and several, each with words of its own."""
    random = Random(seed)
    gate = asyncio.Semaphore(in_flight)

    async def one(http: httpx.AsyncClient, number: int) -> None:
        async with gate:
            content = f"{seed}.{number} " + "word " * random.randrange(12)
            await ledger.ask(http, content, stream=number % 2 == 0, n=1 + (number % 5 == 0), tokens=tokens)

    async with http_of(server, in_flight) as http:
        await asyncio.gather(*(one(http, number) for number in range(count)))
