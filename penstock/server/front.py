"""What all routes share: the engine, the model's text, the meters, and the calls in progress."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from starlette.requests import Request

from penstock.config import ServerConfig
from penstock.engine.client import EngineClient, Facts
from penstock.errors import RequestError
from penstock.server.http.admission import Admission
from penstock.server.http.answer import Answer
from penstock.server.http.body import parse, read_body
from penstock.server.http.call import Call, Wishes, greedy_canary
from penstock.server.http.calls import Calls
from penstock.server.http.faults import ApiError, busy, invalid, unsupported
from penstock.server.http.meters import Meters
from penstock.server.http.trace import Tracer
from penstock.server.openai.dialect import Voice
from penstock.server.openai.protocol import Sampling
from penstock.server.text import Text
from penstock.text.tokenizer.tokenizer import Tokenizer

B = TypeVar("B", bound=Struct)

FRESH_S = 2.0
"""An engine heard this long ago is alive; a token this old still proves it."""
CANARY_S = 2.0


class Front:
    """Made before the engine is ready; `text` is given when it is. Lives on one event loop."""

    def __init__(self, client: EngineClient, config: ServerConfig, version: str) -> None:
        self.client = client
        self.config = config
        self.version = version
        self.fingerprint = f"penstock-{version}"
        self.admission = Admission(client, num_tenants=len(config.api_key))
        self.meters = Meters(client, self.admission)
        self.calls = Calls(self.admission, config.stall_s)
        self.tracer: Tracer | None = None
        self.is_draining = False
        self.created = self.unix_time()
        self._text: Text | None = None
        self._canary_s = -1e9
        client.on_step = self.meters.observe

    # What is served

    @property
    def text(self) -> Text:
        if self._text is None:
            raise busy("the model is being loaded; try again in a moment", 1, code="model_loading")
        return self._text

    @text.setter
    def text(self, text: Text) -> None:
        self._text = text

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    @property
    def facts(self) -> Facts:
        if self.client.facts is None:
            raise busy("the model is being loaded; try again in a moment", 1, code="model_loading")
        return self.client.facts

    @property
    def model(self) -> str:
        return self.facts.model

    @property
    def vocab_size(self) -> int:
        return self.facts.vocab_size

    @staticmethod
    def unix_time() -> int:
        return int(time.time())

    @staticmethod
    def new_id(prefix: str) -> str:
        return prefix + secrets.token_hex(12)

    # A call, from its body to its answer

    async def begin(self, request: Request, type_: type[B]) -> tuple[B, tuple[str, ...]]:
        """The checked body of a call that there is room for, and the fields of it that are ignored."""
        self.check_open()
        if issubclass(type_, Sampling) and not self.facts.can_generate:
            raise invalid("this model makes vectors and generates no text", "model", "unsupported_model")
        tenant = request.scope.get("penstock.tenant", "")
        self.admission.enter(tenant)
        request.scope["penstock.leave"] = partial(self.admission.leave, tenant)
        return await self.body(request, type_)

    async def body(self, request: Request, type_: type[B]) -> tuple[B, tuple[str, ...]]:
        body, ignored = parse(await read_body(request, self.config.max_body_mib << 20), type_)
        self.check_model(getattr(body, "model", None))
        if ignored and self.config.strict:
            raise unsupported(ignored[0][:80], "nothing reads it; leave it out")
        return body, ignored

    def check_open(self) -> None:
        if self.is_draining:
            raise busy("the server is shutting down; send the request elsewhere", 1, code="shutting_down")
        if self._text is None:
            raise busy("the model is being loaded; try again in a moment", 1, code="model_loading")

    def check_model(self, name: str | None) -> None:
        """Clients name the model they mean; an empty name means the one that is served."""
        if name and name not in (self.model, "default"):
            raise ApiError(
                404,
                f"the model {name[:80]!r} is not served here; it is {self.model!r}",
                param="model",
                code="model_not_found",
            )

    def call(self, prompts: Sequence[tuple[int, ...]], wishes: Wishes, *, param: str) -> Call:
        call = Call(self.client, self.tokenizer, prompts, wishes)
        try:
            call.check()
        except RequestError as error:
            raise invalid(
                str(error), param if error.code == "context_length_exceeded" else error.param, error.code
            ) from None
        return call

    def answer(self, call: Call, voice: Voice, body: Sampling, ignored: Sequence[str]) -> "Counted":
        headers = list(self.admission.limits(call.wishes.tenant))
        if ignored:
            headers.append((b"x-penstock-ignored", ", ".join(ignored)[:1000].encode("ascii", "replace")))
        call.tells_progress = bool(body.stream_options and body.stream_options.include_progress)
        answer = Answer(
            call,
            voice,
            is_stream=bool(body.stream),
            timings=self.meters.timings,
            tells_timings=bool(body.return_timings),
            retry_after_s=self.admission.retry_after_s,
            headers=headers,
        )
        return Counted(self, call, answer)

    # Health

    @property
    def is_alive(self) -> bool:
        """The engine has been heard lately."""
        return self.client.is_ready and self.client.silence_s < FRESH_S

    async def is_ready(self) -> bool:
        """A token has come through the real path lately, or comes now."""
        if self.is_draining or self._text is None or not self.is_alive:
            return False
        now = time.monotonic()
        if not self.facts.can_generate:
            return True
        if now - max(self._canary_s, self.meters.last_token_s) < FRESH_S:
            return True
        request = greedy_canary(self.client.next_id())
        stream = self.client.submit(request)
        try:
            async with asyncio.timeout(CANARY_S):
                async for delta in stream:
                    if delta.token_ids:
                        self._canary_s = time.monotonic()
                        return True
        except TimeoutError:
            return self.meters.last_token_s > now
        finally:
            self.client.cancel(request.request_id)
        return False

    async def drain(self, timeout_s: float) -> None:
        """Let calls in progress end; no new ones come in."""
        self.is_draining = True
        deadline_s = time.monotonic() + timeout_s
        while self.admission.num_open and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)


class Counted:
    """An answer that is watched and measured while it runs."""

    def __init__(self, front: Front, call: Call, answer: Answer) -> None:
        self._front = front
        self._call = call
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        front, call = self._front, self._call
        scope["penstock.call"] = call
        front.calls.enter(call, send)
        front.meters.enter(call)
        try:
            await self._answer(scope, receive, send)
        finally:
            front.calls.leave(call)
            if front.tracer is not None:
                scope["penstock.timings"] = front.meters.timings(call)
            front.meters.leave(call)
