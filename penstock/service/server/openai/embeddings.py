"""/v1/embeddings and /v1/rerank: texts as vectors, and documents by how near they are to a query."""

import base64
import math
from array import array
from typing import Any

from starlette.requests import Request

from penstock.runtime.engine.client import Vector
from penstock.service.marks import TokenCount
from penstock.service.server.calls.generation import Caller
from penstock.service.server.calls.prepare import prompts_of
from penstock.service.server.calls.usage import check_bound
from penstock.service.server.front import front_of
from penstock.service.server.http.answer import Json
from penstock.service.server.http.exchange import RELAYED, random_hex
from penstock.service.server.http.faults import Overflow, invalid
from penstock.service.server.openai.protocol import REFUSED, EmbeddingBody, RerankBody
from penstock.service.server.served import ServedModel


async def embed(request: Request) -> Json:
    begun = await front_of(request).begin(request, EmbeddingBody, REFUSED)
    return Json(await embed_body(begun.model, begun.caller, begun.body), headers=begun.headers)


async def embed_body(model: ServedModel, caller: Caller, body: EmbeddingBody) -> dict[str, Any]:
    check_embeds(model)
    prompts = await prompts_of(model, body.input, "input")
    vectors = await embedded(model, caller, prompts, "input", body.dimensions)
    data = [
        {"object": "embedding", "index": index, "embedding": _written(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": model.name, "usage": _usage(prompts)}


async def rerank(request: Request) -> Json:
    """Nearest first, by the cosine of the angle between vectors."""
    begun = await front_of(request).begin(request, RerankBody, REFUSED)
    body, model = begun.body, begun.model
    check_embeds(model)
    texts = [_document(document, number) for number, document in enumerate(body.documents)]
    prompts = await prompts_of(model, [body.query, *texts], "documents", max_items=len(texts) + 1)
    query, *documents = await embedded(model, begun.caller, prompts, "documents")
    scores = [sum(a * b for a, b in zip(query, document, strict=True)) for document in documents]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or len(scores)]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if body.return_documents:
        results = [result | {"document": {"text": texts[result["index"]]}} for result in results]
    return Json({"id": f"rerank-{random_hex()}", "model": model.name, "results": results, "usage": _usage(prompts)})


def check_embeds(model: ServedModel) -> int:
    """The size of the model's vectors."""
    if model.facts.embedding_size is None:
        raise invalid("this model does not embed; serve one that does", "model", "unsupported_model")
    return model.facts.embedding_size


async def embedded(
    model: ServedModel, caller: Caller, prompts: list[tuple[int, ...]], param: str, dimensions: int | None = None
) -> tuple[Vector, ...]:
    """The vectors of prompts, cut to so many dimensions and made of length 1 again."""
    size, max_context = check_embeds(model), model.facts.max_context
    if dimensions is not None and dimensions > size:
        raise invalid(f"dimensions is {dimensions}; this model's vectors have {size}", "dimensions")
    longest = max(map(len, prompts))
    if longest > max_context:
        raise invalid(
            f"This model's maximum context length is {max_context:,} tokens. However, {param} has a text of "
            f"{longest:,} tokens; shorten it",
            param,
            "context_length_exceeded",
            Overflow(longest, 0, max_context),
        )
    num_prompt = sum(map(len, prompts))
    check_bound(caller.most, num_prompt)
    vectors = await model.client.embed(prompts)
    relayed = RELAYED.get()
    if relayed is not None:
        relayed.count = TokenCount(num_prompt)
    return vectors if dimensions is None else tuple(_unit(vector[:dimensions]) for vector in vectors)


def _document(document: str | dict[str, Any], number: int) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str) or not text:
        raise invalid(f"documents[{number}] has no text; send some", "documents")
    return text


def _written(vector: Vector, form: str | None) -> list[float] | str:
    if form != "base64":
        return list(vector)
    numbers = array("f", vector)
    return base64.b64encode(numbers.tobytes()).decode()


def _unit(vector: Vector) -> Vector:
    length = math.sqrt(sum(number * number for number in vector)) or 1.0
    return tuple(number / length for number in vector)


def _usage(prompts: list[tuple[int, ...]]) -> dict[str, int]:
    count = sum(map(len, prompts))
    return {"prompt_tokens": count, "total_tokens": count}
