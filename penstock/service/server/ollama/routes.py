"""/api/chat, /api/generate and the embedding routes."""

import time
from typing import Any

from starlette.requests import Request

from penstock.service.server.calls.generation import Delivery, Generation, Texts
from penstock.service.server.calls.prepare import prepare, prompts_of
from penstock.service.server.front import Begun, Counted, Front, Prepared, front_of
from penstock.service.server.http.answer import Json
from penstock.service.server.http.faults import ApiError, ErrorKind, invalid
from penstock.service.server.ollama.dialect import stamp_of
from penstock.service.server.ollama.encoder import OllamaEncoder
from penstock.service.server.ollama.protocol import (
    REFUSED,
    EmbedBody,
    GenerateBody,
    LegacyEmbedBody,
    OllamaChatBody,
)
from penstock.service.server.ollama.request import chat_generation, keep_alive_s, prompt_generation
from penstock.service.server.openai.embeddings import embedded
from penstock.service.server.served import ServedModel

INFILL_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""How models that fill gaps mark what stands before it, what stands after it, and where they begin."""


async def chat(request: Request) -> Counted | Json:
    front: Front = request.app.state.front
    begun = await front.begin(request, OllamaChatBody, REFUSED, _delivery)
    if not begun.body.asks:
        return _nothing_asked(front, request, begun, {"message": {"role": "assistant", "content": ""}})
    return await _answered(front, begun, chat_generation(begun.body), is_chat=True)


async def generate(request: Request) -> Counted | Json:
    front: Front = request.app.state.front
    begun = await front.begin(request, GenerateBody, REFUSED, _delivery)
    body = begun.body
    if not body.asks:
        return _nothing_asked(front, request, begun, {"response": ""})
    generation = _infill(begun.model, body) if body.suffix else prompt_generation(body, tuple(body.context or ()))
    return await _answered(front, begun, generation, is_chat=False)


async def _answered(
    front: Front, begun: Begun[OllamaChatBody] | Begun[GenerateBody], generation: Generation, *, is_chat: bool
) -> Counted:
    body, model = begun.body, begun.model
    num_ctx = body.options.num_ctx if body.options else None
    if num_ctx is not None and num_ctx > model.facts.max_context:
        raise invalid(
            f"num_ctx is {num_ctx:,}; this model is served with {model.facts.max_context:,}; lower it",
            "options.num_ctx",
        )
    call = await prepare(model, begun.caller, generation)
    num_top = generation.sampling.num_logprobs
    encoder = OllamaEncoder(body.model, model.tokenizer, is_chat=is_chat, num_top=num_top)
    return Counted(front, Prepared(model, call, encoder), begun)


def _delivery(body: OllamaChatBody | GenerateBody) -> Delivery:
    alive_s = keep_alive_s(body.keep_alive)
    return Delivery(
        is_stream=body.stream is not False,
        reports_progress=bool(body.include_progress),
        reports_timings=True,
        keep_alive_s=alive_s,
        is_unload=not body.asks and alive_s == 0.0,
    )


def _kept(body: EmbedBody | LegacyEmbedBody) -> Delivery:
    return Delivery(keep_alive_s=keep_alive_s(body.keep_alive))


def _infill(model: ServedModel, body: GenerateBody) -> Generation:
    """What belongs between prompt and suffix, as models trained for it are asked."""
    known = model.tokenizer.token_id
    marks = next((marks for marks in INFILL_MARKS if all(known(mark) is not None for mark in marks)), None)
    if marks is None:
        raise invalid(f"{body.model[:80]} does not support insert; leave suffix out", "suffix")
    before, after, middle = marks
    text = f"{before}{body.prompt or ''}{after}{body.suffix}{middle}"
    generation = prompt_generation(body)
    return Generation(prompt=Texts(given=text), sampling=generation.sampling, output=generation.output, param="prompt")


def _nothing_asked(front: Front, request: Request, begun: "Begun[Any]", words: dict[str, Any]) -> Json:
    """A question without words asks for the model to be loaded, or with keep_alive 0 to be unloaded. The only one stays."""
    body, resident = begun.body, begun.model.resident
    reason = "unload" if keep_alive_s(body.keep_alive) == 0.0 else "load"
    if reason == "unload" and not front.may_unload(request):
        raise ApiError(ErrorKind.PERMISSION, "several keys use this model: it is unloaded with an --admin-key, or idle")
    if reason == "unload" and front.pool is not None and resident is not None:
        front.pool.expire(resident)
    head = {"model": body.model, "created_at": stamp_of(time.time())}
    return Json(head | words | {"done": True, "done_reason": reason})


async def embed(request: Request) -> Json:
    begun = await front_of(request).begin(request, EmbedBody, REFUSED, _kept)
    start_s, body, model = time.monotonic(), begun.body, begun.model
    if not body.input:
        return Json({"model": body.model, "embeddings": []})
    prompts = await prompts_of(model, body.input, "input")
    if body.truncate is not False:
        prompts = [prompt[: model.facts.max_context] for prompt in prompts]
    vectors = await embedded(model, begun.caller, prompts, "input", body.dimensions)
    return Json(
        {
            "model": body.model,
            "embeddings": [list(vector) for vector in vectors],
            "total_duration": round((time.monotonic() - start_s + begun.load_s) * 1e9),
            "load_duration": round(begun.load_s * 1e9),
            "prompt_eval_count": sum(map(len, prompts)),
        }
    )


async def embed_legacy(request: Request) -> Json:
    begun = await front_of(request).begin(request, LegacyEmbedBody, REFUSED, _kept)
    prompts = await prompts_of(begun.model, begun.body.prompt, "prompt")
    (vector,) = await embedded(begun.model, begun.caller, prompts, "prompt")
    return Json({"embedding": list(vector)})
