"""/api/tags, /api/show, /api/ps and the rest of what Ollama's clients ask about models."""

import hashlib
import math
import time
from typing import Any

from starlette.requests import Request

from penstock.service.server.front import body_of, front_of
from penstock.service.server.http.answer import Json, Plain
from penstock.service.server.http.faults import invalid
from penstock.service.server.ollama.dialect import line_of, stamp_of
from penstock.service.server.ollama.protocol import NameBody
from penstock.service.server.pool.resident import Residency
from penstock.service.server.served import ServedModel

VERSION = "0.12.0"
"""The version of Ollama whose API this is: clients compare it with what they need."""
FOREVER = "2318-01-01T00:00:00Z"


async def version(request: Request) -> Json:
    return Json({"version": VERSION})


async def tags(request: Request) -> Json:
    return Json({"models": [_entry(model) for model in front_of(request).models.known]})


async def processes(request: Request) -> Json:
    loaded = [model for model in front_of(request).models.known if model.state is Residency.READY]
    return Json({"models": [_process(model) for model in loaded]})


async def show(request: Request) -> Json:
    _, model = await _named(request)
    card = model.card
    architecture = card.family or "unknown"
    return Json(
        {
            "modelfile": f"FROM {model.name}\n",
            "parameters": f"num_ctx {model.known.max_context}",
            "template": card.template,
            "details": _details(model),
            "model_info": {
                "general.architecture": architecture,
                "general.parameter_count": card.num_parameters,
                f"{architecture}.context_length": model.known.max_context,
                **(
                    {f"{architecture}.embedding_length": model.known.embedding_size}
                    if model.known.embedding_size
                    else {}
                ),
            },
            "capabilities": capabilities(model),
            "modified_at": stamp_of(model.created),
        }
    )


async def pull(request: Request) -> Plain:
    """A model that is served is here already. Others are the operator's to fetch: `penstock pull`."""
    body, model = await _named(request)
    digest = _digest(model)
    size = model.card.size_bytes
    lines: list[dict[str, Any]] = [
        {"status": "pulling manifest"},
        {"status": f"pulling {digest[:12]}", "digest": f"sha256:{digest}", "total": size, "completed": size},
        {"status": "success"},
    ]
    if body.stream is False:
        return Json(lines[-1])
    return Plain(b"".join(map(line_of, lines)), "application/x-ndjson")


async def delete(request: Request) -> Json:
    _, model = await _named(request)
    raise invalid(f"{model.name[:80]!r} is being served; stop the server before its files are deleted", "model")


def capabilities(model: ServedModel) -> list[str]:
    found = model.capabilities
    if "tools" in model.card.template:  # it describes them to the model itself; all others are told in words
        found.append("tools")
    if model.card.has_reasoning:
        found.append("thinking")
    return found


async def _named(request: Request) -> tuple[NameBody, ServedModel]:
    body = await body_of(request, NameBody)
    name = body.model or body.name
    if not name:
        raise invalid("model is missing; send it", "model", "missing_required_parameter")
    return body, front_of(request).models.find(name)


def _entry(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": stamp_of(model.created),
        "size": model.card.size_bytes,
        "digest": _digest(model),
        "details": _details(model),
    }


def _process(model: ServedModel) -> dict[str, Any]:
    """A model that is loaded: what it takes, and until when it stays."""
    facts, resident = model.facts, model.resident
    size, expires_s = sum(count for _, count in facts.memory), math.inf
    if resident is not None:
        size, expires_s = resident.num_bytes, resident.expires_s
    return _entry(model) | {
        "size": size,
        "size_vram": size if facts.device != "cpu" else 0,
        "expires_at": FOREVER if math.isinf(expires_s) else stamp_of(time.time() + expires_s - time.monotonic()),
        "context_length": facts.max_context,
    }


def _details(model: ServedModel) -> dict[str, Any]:
    card = model.card
    return {
        "parent_model": "",
        "format": card.file_format,
        "family": card.family,
        "families": [card.family] if card.family else [],
        "parameter_size": _parameters(card.num_parameters),
        "quantization_level": card.quantization,
    }


def _parameters(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M" if count else ""


def _digest(model: ServedModel) -> str:
    """A name for what is served; the weights themselves are not read for it."""
    return hashlib.sha256(model.name.encode()).hexdigest()
