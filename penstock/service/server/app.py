"""The routes, and the application made of them."""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from penstock.service.kv_events import EVENTS_PATH
from penstock.service.server.adapters import routes as adapters
from penstock.service.server.adapters.routes import LoadBody, UnloadBody
from penstock.service.server.anthropic import dialect as anthropic
from penstock.service.server.anthropic.protocol import CountBody, MessagesBody
from penstock.service.server.anthropic.routes import count_tokens, create_message
from penstock.service.server.blocks import block_events
from penstock.service.server.dialect import Dialect
from penstock.service.server.front import Front
from penstock.service.server.http import docs
from penstock.service.server.http.exchange import exchange_of
from penstock.service.server.http.guard import Guard
from penstock.service.server.jobs import batches, bills, files
from penstock.service.server.jobs.protocol import BatchBody
from penstock.service.server.jobs.runner import BatchRunner
from penstock.service.server.ollama import catalogue
from penstock.service.server.ollama import dialect as ollama
from penstock.service.server.ollama import routes as ollama_routes
from penstock.service.server.ollama.protocol import EmbedBody, GenerateBody, LegacyEmbedBody, NameBody, OllamaChatBody
from penstock.service.server.openai import dialect as openai
from penstock.service.server.openai.chat import complete_chat
from penstock.service.server.openai.completions import complete_text
from penstock.service.server.openai.embeddings import embed, rerank
from penstock.service.server.openai.models import list_models, show_model
from penstock.service.server.openai.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    RerankBody,
    TokenizeBody,
)
from penstock.service.server.openai.tokens import detokenize, tokenize
from penstock.service.server.pool import sessions
from penstock.service.server.pool.sessions import SessionBody
from penstock.service.server.responses import conversations
from penstock.service.server.responses import routes as responses
from penstock.service.server.responses.protocol import ConversationBody, ConversationItemsBody, InputBody, ResponseBody
from penstock.service.server.responses.routes import Responses
from penstock.service.server.telemetry import health
from penstock.service.server.ui.pages import Pages
from penstock.service.server.ui.routes import ROWS as UI_ROWS

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
    Route("POST", "/v1/responses", responses.create_response, "Make a response", ResponseBody, ("/responses",)),
    Route("POST", "/v1/responses/input_tokens", responses.count_input_tokens, "Count tokens of an input", InputBody),
    Route("GET", "/v1/responses/{id}", responses.retrieve_response, "A response that is kept"),
    Route("DELETE", "/v1/responses/{id}", responses.delete_response, "Forget a response"),
    Route("POST", "/v1/responses/{id}/cancel", responses.cancel_response, "Give up a background response"),
    Route("GET", "/v1/responses/{id}/input_items", responses.list_input_items, "What a response was made from"),
    Route("POST", "/v1/conversations", conversations.create_conversation, "Begin a conversation", ConversationBody),
    Route("GET", "/v1/conversations/{id}", conversations.retrieve_conversation, "A conversation"),
    Route("POST", "/v1/conversations/{id}", conversations.update_conversation, "Change its metadata", ConversationBody),
    Route("DELETE", "/v1/conversations/{id}", conversations.delete_conversation, "Forget a conversation"),
    Route("GET", "/v1/conversations/{id}/items", conversations.list_items, "What was said in it"),
    Route("POST", "/v1/conversations/{id}/items", conversations.add_items, "Say more", ConversationItemsBody),
    Route("GET", "/v1/conversations/{id}/items/{item}", conversations.retrieve_item, "One item of it"),
    Route("DELETE", "/v1/conversations/{id}/items/{item}", conversations.delete_item, "Forget an item"),
    Route("POST", "/v1/files", files.upload_file, "Leave a file"),
    Route("GET", "/v1/files", files.list_files, "Files that are kept"),
    Route("GET", "/v1/files/{id}", files.retrieve_file, "About a file"),
    Route("GET", "/v1/files/{id}/content", files.file_content, "A file"),
    Route("DELETE", "/v1/files/{id}", files.delete_file, "Delete a file"),
    Route("POST", "/v1/batches", batches.create_batch, "Answer a file of requests, in idle moments", BatchBody),
    Route("GET", "/v1/batches", batches.list_batches, "Batches"),
    Route("GET", "/v1/batches/{id}", batches.retrieve_batch, "How far a batch is"),
    Route("POST", "/v1/batches/{id}/cancel", batches.cancel_batch, "Give up the rest of a batch"),
    Route("POST", "/v1/messages", create_message, "Answer a message, as Anthropic's API does", MessagesBody),
    Route("POST", "/v1/messages/count_tokens", count_tokens, "Count the tokens of messages", CountBody),
    Route("POST", "/api/chat", ollama_routes.chat, "Answer a chat, as Ollama's API does", OllamaChatBody),
    Route("POST", "/api/generate", ollama_routes.generate, "Answer or continue a prompt", GenerateBody),
    Route("POST", "/api/embed", ollama_routes.embed, "Turn texts into vectors", EmbedBody),
    Route("POST", "/api/embeddings", ollama_routes.embed_legacy, "Turn a text into a vector", LegacyEmbedBody),
    Route("GET", "/api/tags", catalogue.tags, "What is served"),
    Route("GET", "/api/ps", catalogue.processes, "What is loaded"),
    Route("POST", "/api/show", catalogue.show, "One model", NameBody),
    Route("POST", "/api/pull", catalogue.pull, "Have a model here", NameBody),
    Route("DELETE", "/api/delete", catalogue.delete, "Delete a model that is not served", NameBody),
    Route("GET", "/api/version", catalogue.version, "The version of Ollama's API"),
    Route("GET", "/v1/models", list_models, "What is served", None, ("/models",)),
    Route("GET", "/v1/models/{name:path}", show_model, "One model", None, ("/models/{name:path}",)),
    Route("POST", "/v1/load_lora_adapter", adapters.load_adapter, "Serve an adapter, for admins", LoadBody),
    Route("POST", "/v1/unload_lora_adapter", adapters.unload_adapter, "Serve it no more, for admins", UnloadBody),
    Route("GET", "/cache/sessions", sessions.list_sessions, "Sessions in the KV cache and where they lie, for admins"),
    Route(
        "POST", "/cache/sessions", sessions.order_session, "Pin, drop, export or import one, for admins", SessionBody
    ),
    Route("GET", "/lora-adapters", adapters.list_adapters, "Adapters, for admins"),
    Route("POST", "/lora-adapters", adapters.scale_adapters, "Refused: requests name their adapters"),
    Route("GET", "/livez", health.live, "Does the server live?"),
    Route("GET", "/readyz", health.ready, "Would a request be answered now?"),
    Route("GET", "/health", health.health, "Does the engine live?"),
    Route("GET", "/metrics", health.metrics, "Numbers for Prometheus"),
    Route("GET", "/bills", bills.list_bills, "Tokens made after their requests were answered, for a gateway"),
    Route("POST", "/bills", bills.take_bills, "Which of them are written down", bills.TakenBody),
    Route("GET", EVENTS_PATH, block_events, "What the prefix cache holds, as it changes, for a router"),
    Route("GET", "/version", health.version, "Which version this is"),
    Route("GET", "/docs", docs.page, "This list, for people"),
    Route("GET", "/openapi.json", docs.document, "This list, for programs"),
    *(Route(*row) for row in UI_ROWS),
)


def make_app(front: Front, service: Responses, runner: BatchRunner) -> Guard:
    """The application to serve. `front` is shared by all requests; the others belong to one API each."""
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
    pages = Pages(front)
    guard = Guard(router, front.config, dialect_of, partial(_count, front), partial(_over, front, pages))
    guard.state.front = front
    guard.state.pages = pages
    guard.state.responses = service
    guard.state.bills = front.bills = service.bills
    guard.state.jobs = runner.jobs
    guard.state.batch_runner = runner
    guard.state.routes = ROUTES
    return guard


def dialect_of(path: str, is_anthropic: bool) -> Dialect:
    """How answers on a path are worded, errors of paths that are not there included."""
    if path.startswith("/v1/messages") or (is_anthropic and path.startswith("/v1/models")):
        return anthropic.DIALECT
    if path.startswith("/v1/responses"):
        return openai.RESPONSES
    return ollama.DIALECT if path.startswith("/api/") else openai.DIALECT


def _count(front: Front, scope: dict[str, Any], status: int) -> None:
    front.counters.http_responses.add(1, (("route", _path(scope)), ("status", str(status))))


def _over(front: Front, pages: Pages, scope: dict[str, Any], status: int, start_s: float) -> None:
    fault = exchange_of(scope).fault
    if fault is not None and status >= HTTPStatus.BAD_REQUEST:
        pages.refusals.note(scope, status, fault.message, fault.code or fault.kind.name.lower(), time.time())
    _trace(front, scope, status, start_s)


def _trace(front: Front, scope: dict[str, Any], status: int, start_s: float) -> None:
    """Tell the collector, if there is one, of a request for work; a fault in telling is nobody else's."""
    if front.tracer is None or scope["method"] != "POST":
        return
    model = exchange_of(scope).model or front.models.first
    try:
        front.tracer.report(scope, _path(scope), status, start_s, model.known_name)
    except Exception as error:
        LOGGER.warning("a span is lost: %s", type(error).__name__)


def _path(scope: dict[str, Any]) -> str:
    return getattr(scope.get("route"), "path", "other")
