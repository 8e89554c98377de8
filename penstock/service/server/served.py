"""What is served: one value per model, and the table of them.

A served model is its engine, its text and the facts of both, with who may come in and what is counted. Routes find theirs in
the table by the name a client sent; nothing here knows a dialect.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Protocol

from penstock.metrics.exposition import Metric
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.client import EngineClient, Facts
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.runtime.text.watermark import Watermark
from penstock.service.server.blocks import BlockIndex
from penstock.service.server.http.admission import Admission
from penstock.service.server.http.faults import ApiError, loading, not_found
from penstock.service.server.pins import PinLedger
from penstock.service.server.pool.resident import Residency, Resident
from penstock.service.server.telemetry.meters import Meters
from penstock.service.server.telemetry.prefixes import PrefixWatch
from penstock.service.server.text import NO_CARD, ModelCard, Text

FRESH_S = 2.0
"""An engine that sent something this recently is alive; a token this old still proves it."""
SILENT_S = 1.5
"""An engine beats four times a second, whatever it computes: after so long without a sign it is stopped, or starved."""
CANARY_S = 2.0
DEFAULT_NAME = "default"
LATEST = ":latest"
"""Ollama's clients add it to names that have no tag."""


class ServedModel:
    """Made before its engine is ready; `text` is given when it is. Lives on one event loop."""

    def __init__(
        self, client: EngineClient, *, num_tenants: int, num_keys: int = 0, resident: Resident | None = None
    ) -> None:
        """`resident` is where it stands as one of several that come and go; None for one that is always there."""
        self.base: ServedModel = self
        """What an adapter is laid over."""
        self.client = client
        self.resident = resident
        self.admission = Admission(client, num_tenants=num_keys)
        self.meters = Meters(client, self.admission)
        self.blocks = BlockIndex(client)
        self.pins = PinLedger(num_tenants=num_tenants)
        self.created = int(time.time())
        self.adapter = ""
        """Path of what is laid over the model."""
        self.watermark: Watermark | None = None
        """What answers carry that are sampled."""
        self.fault = ""
        """Why no request should be served: the model is not what it was."""
        self._text: Text | None = None
        self._card = NO_CARD
        self._canary_s = -1e9
        self.prefixes: PrefixWatch | None = None
        client.on_step = self.meters.observe

    def watch_prefixes(self, *, keeps_words: bool) -> None:
        """Hold each prompt against the last ones from now on."""
        self.prefixes = watch = PrefixWatch(
            16, lambda ids: self.tokenizer.decode(ids, skip_special=False), keeps_words=keeps_words
        )

        def note(request: Request, num_cached: int) -> None:
            if self.client.facts is not None:
                watch.block_size = self.client.facts.block_size
            watch.note(request.prompt, f"{request.salt} {request.adapter}", num_cached)

        self.meters.watch_prefix = note

    @property
    def is_open(self) -> bool:
        """It can take requests: words and weights are there."""
        return self.base._text is not None

    @property
    def text(self) -> Text:
        text = self.base._text
        if text is None:
            raise loading()
        return text

    @text.setter
    def text(self, text: Text) -> None:
        self._text = text

    def forget_text(self) -> None:
        """Of a model that is not loaded. Its card stays."""
        self._card, self._text = self.card, None

    @property
    def card(self) -> ModelCard:
        """Also of a model that was never loaded, once its files have been looked at."""
        base = self.base
        return base._card if base._text is None else base._text.card

    @card.setter
    def card(self, card: ModelCard) -> None:
        self._card = card

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    @property
    def facts(self) -> Facts:
        if self.client.facts is None:
            raise loading()
        return self.client.facts

    @property
    def name(self) -> str:
        return self.facts.model if self.resident is None else self.resident.name

    @property
    def known_name(self) -> str:
        """The name, or nothing while it is not known."""
        return "" if self.resident is None and self.client.facts is None else self.name

    @property
    def state(self) -> Residency:
        if self.resident is not None:
            return self.resident.state
        return Residency.READY if self.is_open and self.client.is_ready else Residency.LOADING

    @property
    def known(self) -> Facts | ModelCard:
        """Its longest context, whether it generates, the size of its vectors: found when it was loaded, or as its files say."""
        return self.client.facts or self.card

    @property
    def capabilities(self) -> list[str]:
        names = (self.known.can_generate and "completion", self.known.embedding_size and "embedding")
        return [name for name in names if name]

    @property
    def is_alive(self) -> bool:
        """The engine has sent something lately; one that is not loaded now has nothing to say."""
        if self.resident is not None and self.resident.state is not Residency.READY:
            return True
        return self.client.is_ready and self.client.silence_s < FRESH_S

    @property
    def is_silent(self) -> bool:
        return self.client.is_ready and self.client.silence_s >= SILENT_S

    async def is_ready(self) -> bool:
        """A token has come through the real path lately, or comes now. A model that is not loaded now is ready to be asked."""
        resident = self.resident
        if resident is not None and resident.state is not Residency.READY:
            return resident.state is not Residency.FAILED and not resident.is_pinned
        if (
            not self.is_open
            or self.is_silent
            or not self.is_alive
            or self.fault
            or (resident is not None and resident.fault)
        ):
            return False
        now = time.monotonic()
        if not self.facts.can_generate:
            return True
        if now - max(self._canary_s, self.meters.last_token_s) < FRESH_S:
            return True
        request = self._greedy(1, (1,), "canary")
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

    async def greedy_tokens(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        """What the model answers to a prompt alone, none of it cached, without drafts: each may change the rounding.

        Empty if another request came meanwhile, or the answer did not come to its end.
        """
        is_alone, request = not self.client.num_open, self._greedy(count, prompt, f"canary {time.monotonic_ns()}")
        stream = self.client.submit(request)
        token_ids: list[int] = []
        try:
            async for delta in stream:
                token_ids += delta.token_ids
        finally:
            self.client.cancel(request.request_id)
        is_alone = is_alone and self.client.next_id() == request.request_id + 1
        return tuple(token_ids) if is_alone and len(token_ids) == count else ()

    def _greedy(self, count: int, prompt: tuple[int, ...], salt: str) -> Request:
        """So many tokens through the real path, none of them drawn by lot or guessed before."""
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        number, now = self.client.next_id(), time.monotonic()
        return Request(request_id=number, prompt=prompt, params=params, arrival_s=now, salt=salt, speculate=0)


class AdaptedModel(ServedModel):
    """A model with an adapter laid over it, under a name of its own: its base's engine, words and counters."""

    def __init__(self, base: ServedModel, name: str, path: str) -> None:
        self.base = base
        self.adapter = path
        self.client, self.resident = base.client, base.resident
        self.admission, self.meters, self.blocks, self.pins = base.admission, base.meters, base.blocks, base.pins
        self.created, self.fault = int(time.time()), ""
        self.watermark = base.watermark
        self._own_name = name

    @property
    def name(self) -> str:
        return self._own_name


class NamedAdapters(Protocol):
    """Adapters by name, as the table of models asks for them."""

    def __iter__(self) -> Iterator[AdaptedModel]: ...

    def get(self, name: str) -> AdaptedModel | None: ...

    def metrics(self) -> list[Metric]:
        """What is counted of them."""

    def view(self) -> dict[str, Any]:
        """What the dashboard shows of them."""


class ServedModels:
    """The table. An empty name, or `default`, means the first. Adapters are found by name and listed; they are no models to
    wait for, load or count."""

    def __init__(self, *models: ServedModel) -> None:
        self._models = models
        self.first = models[0]
        self.adapters: NamedAdapters | None = None
        """Of the first model; none where none are served."""

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    @property
    def known(self) -> list[ServedModel]:
        """Models whose names are known."""
        named = [model for model in self._models if model.known_name]
        return named if self.adapters is None or not named else [*named, *self.adapters]

    @property
    def longest_context(self) -> int:
        """Of those whose context is known; it may not be, of a model that was never loaded."""
        return max((model.known.max_context for model in self.known), default=0)

    def max_context(self) -> int:
        """No text is longer; 0 while a context is not known."""
        contexts = [model.known.max_context for model in self._models]
        return max(contexts) if all(contexts) else 0

    def find(self, name: str | None) -> ServedModel:
        """The model a client means. Raises an error that names those there are."""
        if not name or name == DEFAULT_NAME:
            return self.first
        for model in self._models:
            if model.known_name == name:
                return model
        adapted = None if self.adapters is None else self.adapters.get(name)
        if adapted is not None:
            return adapted
        if name.endswith(LATEST):
            return self.find(name.removesuffix(LATEST))
        raise self.unknown(name)

    def unknown(self, name: str) -> ApiError:
        """The error that names the models there are."""
        there = ", ".join(repr(model.name) for model in self.known[:20])
        message = f"the model {name[:80]!r} is not served here; it is {there}"
        return not_found(message, "model", "model_not_found") if there else loading()
