"""/v1/embeddings and /v1/rerank: texts as vectors, and documents by how near they are to a query."""

import base64
import math
from array import array
from typing import Any

from starlette.requests import Request

from penstock.engine.client import Vector
from penstock.server.front import Front
from penstock.server.http.answer import Json
from penstock.server.http.faults import invalid
from penstock.server.openai.parameters import prompts_of
from penstock.server.openai.protocol import EmbeddingBody, RerankBody


async def embed(request: Request) -> Json:
    front: Front = request.app.state.front
    body, ignored = await front.begin(request, EmbeddingBody)
    prompts = await prompts_of(front, body.input, "input")
    size = _size(front)
    if body.dimensions is not None and body.dimensions > size:
        raise invalid(f"dimensions is {body.dimensions}; this model's vectors have {size}", "dimensions")
    vectors = await _embedded(front, prompts, "input")
    if body.dimensions is not None:
        vectors = tuple(_unit(vector[: body.dimensions]) for vector in vectors)
    data = [
        {"object": "embedding", "index": index, "embedding": _written(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    headers = [(b"x-penstock-ignored", ", ".join(ignored)[:1000].encode("ascii", "replace"))] if ignored else []
    return Json({"object": "list", "data": data, "model": front.model, "usage": _usage(prompts)}, headers=headers)


async def rerank(request: Request) -> Json:
    """Nearest first, by the cosine of the angle between vectors."""
    front: Front = request.app.state.front
    body, _ = await front.begin(request, RerankBody)
    texts = [_document(document, number) for number, document in enumerate(body.documents)]
    prompts = await prompts_of(front, [body.query, *texts], "documents", max_items=len(texts) + 1)
    query, *documents = await _embedded(front, prompts, "documents")
    scores = [sum(a * b for a, b in zip(query, document, strict=True)) for document in documents]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or len(scores)]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if body.return_documents:
        results = [result | {"document": {"text": texts[result["index"]]}} for result in results]
    return Json({"id": front.new_id("rerank-"), "model": front.model, "results": results, "usage": _usage(prompts)})


def _size(front: Front) -> int:
    size = front.facts.embedding_size
    if size is None:
        raise invalid("this model does not embed; serve one that does", "model", "unsupported_model")
    return size


async def _embedded(front: Front, prompts: list[tuple[int, ...]], param: str) -> tuple[Vector, ...]:
    _size(front)
    longest = max(map(len, prompts))
    if longest > front.facts.max_context:
        raise invalid(
            f"This model's maximum context length is {front.facts.max_context:,} tokens. However, {param} has a text of "
            f"{longest:,} tokens; shorten it",
            param,
            "context_length_exceeded",
        )
    return await front.client.embed(prompts)


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
