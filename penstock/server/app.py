"""The routes, and the application made of them."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from penstock.server.dialect import Dialect
from penstock.server.front import Front
from penstock.server.http import docs, health
from penstock.server.http.guard import Guard
from penstock.server.openai import dialect as openai
from penstock.server.openai.chat import complete_chat
from penstock.server.openai.completions import complete_text
from penstock.server.openai.embeddings import embed, rerank
from penstock.server.openai.models import list_models, show_model
from penstock.server.openai.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    RerankBody,
    TokenizeBody,
)
from penstock.server.openai.tokens import detokenize, tokenize
from penstock.server.ui.routes import ROWS as UI_ROWS

LOGGER = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """A row of the route table. Tests of bad input and of keys run over every row."""

    method: str
    path: str
    handler: Handler
    help: str
    body: type | None = None
    aliases: tuple[str, ...] = ()
    """Other paths for the same; clients leave `/v1` out, or add it."""


ROUTES = (
    Route("POST", "/v1/chat/completions", complete_chat, "Answer a chat", ChatBody, ("/chat/completions",)),
    Route("POST", "/v1/completions", complete_text, "Continue a text", CompletionBody, ("/completions",)),
    Route("POST", "/v1/embeddings", embed, "Turn texts into vectors", EmbeddingBody, ("/embeddings",)),
    Route("POST", "/v1/rerank", rerank, "Order documents by nearness to a query", RerankBody, ("/rerank",)),
    Route("POST", "/tokenize", tokenize, "Text or messages to token ids", TokenizeBody, ("/v1/tokenize",)),
    Route("POST", "/detokenize", detokenize, "Token ids to text", DetokenizeBody, ("/v1/detokenize",)),
    Route("GET", "/v1/models", list_models, "What is served", None, ("/models",)),
    Route("GET", "/v1/models/{name:path}", show_model, "One model", None, ("/models/{name:path}",)),
    Route("GET", "/livez", health.live, "Does the server live?"),
    Route("GET", "/readyz", health.ready, "Would a request be answered now?"),
    Route("GET", "/health", health.health, "Does the engine live?"),
    Route("GET", "/metrics", health.metrics, "Numbers for Prometheus"),
    Route("GET", "/version", health.version, "Which version this is"),
    Route("GET", "/docs", docs.page, "This list, for people"),
    Route("GET", "/openapi.json", docs.document, "This list, for programs"),
    *(Route(*row) for row in UI_ROWS),
)


def make_app(front: Front) -> Guard:
    """The application to serve. `front` is shared by all requests."""
    by_path: dict[str, dict[str, Handler]] = {}
    for route in ROUTES:
        for path in (route.path, *route.aliases):
            by_path.setdefault(path, {})[route.method] = route.handler
    routes = [
        StarletteRoute(path, handler, methods=[method])
        for path, handlers in by_path.items()
        for method, handler in handlers.items()
    ]
    router = Router(routes, redirect_slashes=False)
    guard = Guard(router, front.config, dialect_of, partial(_count, front), partial(_trace, front))
    guard.state.front = front
    guard.state.routes = ROUTES
    return guard


def dialect_of(path: str, is_anthropic: bool) -> Dialect:
    """How answers on a path are worded, errors of paths that are not there included."""
    return openai.DIALECT


def _count(front: Front, scope: dict[str, Any], status: int) -> None:
    front.http_responses.add(1, (("route", _path(scope)), ("status", str(status))))


def _trace(front: Front, scope: dict[str, Any], status: int, start_s: float) -> None:
    """Tell the collector, if there is one, of a request for work; a fault in telling is nobody else's."""
    if front.tracer is None or scope["method"] != "POST":
        return
    model = scope.get("penstock.model") or front.models.first.known_name
    try:
        front.tracer.report(scope, _path(scope), status, start_s, model)
    except Exception as error:
        LOGGER.warning("a span is lost: %s", type(error).__name__)


def _path(scope: dict[str, Any]) -> str:
    return getattr(scope.get("route"), "path", "other")
