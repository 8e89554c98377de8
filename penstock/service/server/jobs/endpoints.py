"""What a batch may ask: the routes whose requests can be answered later, one row each."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from penstock.service.server.calls.generation import Caller
from penstock.service.server.calls.usage import usage_of
from penstock.service.server.front import Front, Prepared
from penstock.service.server.http.body import convert
from penstock.service.server.openai import protocol as openai
from penstock.service.server.openai.chat import prepare_chat
from penstock.service.server.openai.completions import prepare_text
from penstock.service.server.openai.embeddings import embed_body
from penstock.service.server.responses import protocol as responses
from penstock.service.server.responses.routes import Responses, all_items, prepare_response
from penstock.service.server.served import ServedModel
from penstock.service.store.jobs import LineUsage


class LineAnswer(NamedTuple):
    body: dict[str, Any]
    usage: LineUsage


Preparing = Callable[[Front, ServedModel, Caller, Any], Awaitable[Prepared]]
Answering = Callable[[Responses, ServedModel, Caller, Any], Awaitable[LineAnswer]]


class JobEndpoint(NamedTuple):
    body: type[msgspec.Struct]
    answer: Answering
    refused: dict[str, str]


async def _generated(
    prepare: Preparing, service: Responses, model: ServedModel, caller: Caller, body: Any
) -> LineAnswer:
    return await _collected(await prepare(service.front, model, caller, body))


async def _embeddings(service: Responses, model: ServedModel, caller: Caller, body: Any) -> LineAnswer:
    value = await embed_body(model, caller, body)
    return LineAnswer(value, LineUsage(num_input=value["usage"]["prompt_tokens"]))


async def _response(service: Responses, model: ServedModel, caller: Caller, body: Any) -> LineAnswer:
    items = await all_items(service, body, caller.tenant)
    prepared, _ = await prepare_response(service, model, caller, body, items)
    return await _collected(prepared)


async def _collected(prepared: Prepared) -> LineAnswer:
    body = await prepared.collect()
    usage = usage_of(prepared.call)
    return LineAnswer(body, LineUsage(usage.num_prompt, usage.num_cached, usage.num_output, usage.num_reasoning))


ENDPOINTS: dict[str, JobEndpoint] = {
    "/v1/chat/completions": JobEndpoint(openai.ChatBody, partial(_generated, prepare_chat), openai.REFUSED),
    "/v1/completions": JobEndpoint(openai.CompletionBody, partial(_generated, prepare_text), openai.REFUSED),
    "/v1/embeddings": JobEndpoint(openai.EmbeddingBody, _embeddings, openai.REFUSED),
    "/v1/responses": JobEndpoint(responses.ResponseBody, _response, responses.REFUSED),
}


def checked_body(endpoint: JobEndpoint, raw: Any) -> Any:
    """The typed body of a line. A stream or a background has no sense there, and is asked for by habit: it is left out."""
    body, _ = convert(raw, endpoint.body, endpoint.refused)
    for name in ("stream", "background"):
        if getattr(body, name, None):
            setattr(body, name, None)
    return body
