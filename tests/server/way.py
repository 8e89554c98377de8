"""The way of one chat through the server's own code, from its route to the engine: `python -m tests.server.way` prints it.

Counted are modules of `service` and of `runtime/text` in which a function runs, and returns of those functions, before the
engine's client is given the request. Generator expressions and comprehensions count with the function they stand in.
"""

import asyncio
import json
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import penstock
from penstock.assembly.text import open_text
from penstock.service.config import ServerConfig
from penstock.service.server.app import make_app
from penstock.service.server.front import Front
from penstock.service.server.jobs.runner import BatchRunner
from penstock.service.server.jobs.service import Jobs
from penstock.service.server.openai.chat import complete_chat
from penstock.service.server.responses.routes import make_responses
from penstock.service.server.served import ServedModel, ServedModels
from penstock.service.store import bills, jobs, responses
from penstock.service.store.storage import open_storage
from tests.server.serving import MODEL, idle_client, user

PACKAGE = Path(penstock.__file__).parent
ROOMS = ("service/", "runtime/text/")
HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]


class Arrived(Exception):
    """The request is at the engine's client."""


class Way:
    """What was passed, in order."""

    def __init__(self) -> None:
        self.returns: Counter[tuple[str, str]] = Counter()
        """By module and function."""
        self._modules: dict[CodeType, str] = {}
        self._is_begun = False

    @property
    def modules(self) -> list[str]:
        return list(dict.fromkeys(module for module, _ in self.returns))

    @property
    def num_returns(self) -> int:
        return self.returns.total()

    def observe(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        self._is_begun |= code is complete_chat.__code__
        if event == "return" and self._is_begun and (module := self._module(code)):
            self.returns[module, code.co_qualname] += 1

    def _module(self, code: CodeType) -> str:
        """Within the package, of the rooms that count; else empty."""
        if code not in self._modules:
            path = Path(code.co_filename)
            name = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else ""
            self._modules[code] = name if name.startswith(ROOMS) else ""
        return self._modules[code]


async def walk() -> Way:
    client = idle_client(max_waiting=8, max_sequences=8)
    model = ServedModel(client, num_tenants=0)
    model.text = open_text(MODEL)
    front = Front(ServedModels(model), ServerConfig(), "0")
    storage = open_storage(None, (responses.SCHEMA, jobs.SCHEMA, bills.SCHEMA))
    service = make_responses(front, storage.database)
    app = make_app(front, service, BatchRunner(Jobs(service, storage)))
    body = json.dumps({"messages": user("Hello there"), "max_tokens": 8, "stream": True}).encode()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [*HEADERS, (b"content-length", b"%d" % len(body))],
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "penstock.connection": SimpleNamespace(abort=None, is_gone=False),
    }
    received: list[Any] = []

    async def receive() -> Any:
        return received.pop() if received else await asyncio.Event().wait()

    def submit(_: Any) -> None:
        sys.setprofile(None)
        raise Arrived

    client.submit = submit  # type: ignore[method-assign,assignment]
    with closing(storage):
        for _ in range(2):  # the first finds its caches empty
            way, received[:] = Way(), [{"type": "http.request", "body": body}]
            sys.setprofile(way.observe)
            try:
                await app(dict(scope), receive, discard)
            finally:
                sys.setprofile(None)
    return way


async def discard(_: Any) -> None:
    """What the guard says of `Arrived`, which it takes for a fault."""


def main() -> None:
    way = asyncio.run(walk())
    for module in way.modules:
        print(module)
        for (where, name), count in way.returns.items():
            if where == module:
                print(f"    {count:3} {name}")
    print(f"{len(way.modules)} modules, {way.num_returns} returns")


if __name__ == "__main__":
    main()
