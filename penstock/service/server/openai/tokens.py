"""/tokenize and /detokenize: the model's own tokens, for those who count."""

from functools import partial

from starlette.requests import Request

from penstock.service.server.calls.generation import Chat
from penstock.service.server.calls.prepare import (
    INLINE_CHARACTERS,
    check_ids,
    check_size,
    encode,
    off_loop,
    prompt_of_chat,
)
from penstock.service.server.front import front_of
from penstock.service.server.http.answer import Json
from penstock.service.server.http.faults import invalid
from penstock.service.server.openai.protocol import REFUSED, DetokenizeBody, TokenizeBody
from penstock.service.server.openai.request import messages_of


async def tokenize(request: Request) -> Json:
    begun = await front_of(request).begin(request, TokenizeBody, REFUSED)
    body, model = begun.body, begun.model
    if (body.prompt is None) == (body.messages is None):
        raise invalid("send either prompt or messages", "prompt")
    if body.prompt is not None:
        check_size(model, [body.prompt], "prompt")
        special, parses = body.add_special_tokens is not False, body.parse_special is not False
        token_ids = await encode(model.tokenizer, body.prompt, special=special, parse_special=parses)
    else:
        chat = Chat(
            messages=messages_of(body.messages or []), adds_generation_prompt=body.add_generation_prompt is not False
        )
        token_ids = (await prompt_of_chat(model, chat)).token_ids
    answer = {"count": len(token_ids), "max_model_len": model.facts.max_context, "tokens": token_ids}
    if body.return_token_strs:
        answer["token_strs"] = [model.tokenizer.token(token_id) for token_id in token_ids]
    return Json(answer)


async def detokenize(request: Request) -> Json:
    begun = await front_of(request).begin(request, DetokenizeBody, REFUSED)
    body, model = begun.body, begun.model
    max_context = model.facts.max_context
    if len(body.tokens) > max_context:
        raise invalid(f"tokens has {len(body.tokens):,} ids; a context here has at most {max_context:,}", "tokens")
    check_ids(body.tokens, model.facts.vocab_size, "tokens")
    decoding = partial(model.tokenizer.decode, body.tokens, skip_special=bool(body.skip_special_tokens))
    return Json({"prompt": decoding() if len(body.tokens) <= INLINE_CHARACTERS else await off_loop(decoding)})
