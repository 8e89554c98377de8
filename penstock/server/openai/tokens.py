"""/tokenize and /detokenize: the model's own tokens, for those who count."""

from starlette.requests import Request

from penstock.server.front import Front
from penstock.server.http.answer import Json
from penstock.server.http.faults import invalid
from penstock.server.openai.parameters import encode, prompt_of_messages
from penstock.server.openai.protocol import DetokenizeBody, TokenizeBody


async def tokenize(request: Request) -> Json:
    front: Front = request.app.state.front
    front.check_open()
    body, _ = await front.body(request, TokenizeBody)
    if (body.prompt is None) == (body.messages is None):
        raise invalid("send either prompt or messages", "prompt")
    if body.prompt is not None:
        token_ids = await encode(front.tokenizer, body.prompt, special=body.add_special_tokens is not False)
    else:
        token_ids = (await prompt_of_messages(front, body)).token_ids
    answer = {"count": len(token_ids), "max_model_len": front.facts.max_context, "tokens": token_ids}
    if body.return_token_strs:
        answer["token_strs"] = [front.tokenizer.token(token_id) for token_id in token_ids]
    return Json(answer)


async def detokenize(request: Request) -> Json:
    front: Front = request.app.state.front
    front.check_open()
    body, _ = await front.body(request, DetokenizeBody)
    if body.tokens and max(body.tokens) >= front.vocab_size:
        raise invalid(f"tokens has the id {max(body.tokens)}; ids are below {front.vocab_size}", "tokens")
    return Json({"prompt": front.tokenizer.decode(body.tokens, skip_special=bool(body.skip_special_tokens))})
