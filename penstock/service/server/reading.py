"""What a request may take, read by its own dialect from the bytes: model, choices, prompts, tokens of answer.

The fields and their types are the body types' own, only fewer: a text is never taken apart for this. A gateway limits,
reserves and bills by this reading; the server that answers keeps to what was reserved. Knows no HTTP and no engine.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.errors import RequestError
from penstock.service.marks import TokenBound
from penstock.service.server.anthropic.protocol import MessagesBody
from penstock.service.server.jobs.protocol import BatchBody
from penstock.service.server.ollama.protocol import EmbedBody, GenerateBody, LegacyEmbedBody, OllamaChatBody
from penstock.service.server.openai.protocol import ChatBody, CompletionBody, EmbeddingBody, RerankBody
from penstock.service.server.responses.protocol import ResponseBody

BYTES_PER_TOKEN = 2
"""Of a body, so that a prompt seldom has more tokens than it is taken to have."""
TEMPLATE_TOKENS = 256
"""Tokens that a chat template may add."""
UNBOUNDED = 4096
"""Tokens of an answer that asks for no bound."""


NAMES = (
    *("model", "stream", "background", "service_tier", "n", "best_of", "beam_width"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "options"),
)
"""Fields that decide what a request may take, in whatever dialect."""


class TokenReading(NamedTuple):
    """What a request may take."""

    kind: str
    """answer, vectors or batch"""
    model: str
    num_bytes: int = 0
    num_prompts: int = 1
    num_choices: int = 1
    """Of each prompt."""
    max_answer: int | None = None
    """Tokens of a choice; None is until the model ends."""
    is_stream: bool = False
    is_later: bool = False
    """Its tokens are made after it has been answered."""
    tier: str = ""

    def bound(self, unbounded: int = UNBOUNDED) -> TokenBound:
        """Tokens it is taken to take at most; the server that tokenizes it knows better."""
        if self.kind == "batch":
            return TokenBound(0, 0)
        num_prompt = self.num_bytes // BYTES_PER_TOKEN + TEMPLATE_TOKENS * self.num_prompts
        per_choice = unbounded if self.max_answer is None else max(self.max_answer, 1)
        return TokenBound(num_prompt, per_choice * self.num_choices * self.num_prompts if self.kind == "answer" else 0)


FREE = (
    *("/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize", "/v1/messages/count_tokens"),
    *("/v1/responses/", "/v1/conversations", "/v1/files", "/v1/batches/"),
    *("/api/show", "/api/pull", "/api/delete", "/app/"),
)
"""Paths, by how they begin, where something is counted, kept or looked at and no token is made."""


def is_free(method: str, path: str) -> bool:
    """A request that makes no tokens, whatever is in it."""
    return method in ("GET", "HEAD", "DELETE", "OPTIONS") or path.startswith(FREE)


def read_request(path: str, body: bytes) -> TokenReading | None:
    """None for a path where no tokens are made. Raises RequestError for a body that its dialect does not take."""
    row = _ROWS.get(path)
    if row is None:
        return None
    kind, decoder = row
    try:
        view = decoder.decode(body)
        num_prompts = _num_prompts(view)
    except RecursionError:
        raise RequestError("the body is nested too deeply; flatten it", code="invalid_json") from None
    except msgspec.ValidationError as error:
        raise RequestError(f"the body cannot be read: {error}; mend it", code="invalid_type") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {error}", code="invalid_json") from None
    return _reading(kind, view, len(body), num_prompts)


def read_line(endpoint: str, body: Any, num_bytes: int) -> TokenReading:
    """The same of a body that was decoded and checked."""
    kind, _ = _ROWS[endpoint]
    prompt = getattr(body, "prompt", None) or getattr(body, "input", None)
    is_many = isinstance(prompt, list) and prompt and endpoint != "/v1/responses" and not isinstance(prompt[0], int)
    return _reading(kind, body, num_bytes, len(prompt or "") if is_many else 1)


def _reading(kind: str, view: Any, num_bytes: int, num_prompts: int) -> TokenReading:
    asked = (getattr(view, name, None) for name in ("n", "best_of", "beam_width"))
    stream = getattr(view, "stream", None)
    return TokenReading(
        kind=kind,
        model=getattr(view, "model", None) or "",
        num_bytes=num_bytes,
        num_prompts=num_prompts,
        num_choices=max((one for one in asked if one), default=1),
        max_answer=getattr(view, "max_answer", None),
        is_stream=bool(stream) if not hasattr(view, "options") else stream is not False,
        is_later=kind == "batch" or bool(getattr(view, "background", None)),
        tier=getattr(view, "service_tier", None) or "",
    )


def _num_prompts(view: Any) -> int:
    raw: msgspec.Raw | None = getattr(view, "several", None)
    text = bytes(raw).lstrip() if raw else b""
    if not text.startswith(b"["):
        return 1
    items = msgspec.json.decode(text, type=list[msgspec.Raw])
    is_one = not items or bytes(items[0]).lstrip()[:1].isdigit()
    return 1 if is_one else len(items)


def _view(body: type[msgspec.Struct], several: str = "") -> "msgspec.json.Decoder[Any]":
    """A decoder of the fields of a body that decide what it may take, by their own types. `several` may hold many prompts."""
    fields = [
        (one.name, one.type) if one.required else (one.name, one.type, one.default)
        for one in msgspec.structs.fields(body)
        if one.name in NAMES
    ]
    if several:
        fields.append(("several", msgspec.Raw, msgspec.Raw()))
    maker: Callable[..., type[msgspec.Struct]] = msgspec.defstruct
    view = maker(
        f"{body.__name__}View",
        fields,
        namespace={"max_answer": body.max_answer} if hasattr(body, "max_answer") else {},
        rename={"several": several} if several else None,
        kw_only=True,
    )
    return msgspec.json.Decoder(view)


_ROWS: Mapping[str, tuple[str, "msgspec.json.Decoder[Any]"]] = {
    "/v1/chat/completions": ("answer", _view(ChatBody)),
    "/v1/completions": ("answer", _view(CompletionBody, "prompt")),
    "/v1/messages": ("answer", _view(MessagesBody)),
    "/v1/responses": ("answer", _view(ResponseBody)),
    "/api/chat": ("answer", _view(OllamaChatBody)),
    "/api/generate": ("answer", _view(GenerateBody)),
    "/v1/embeddings": ("vectors", _view(EmbeddingBody, "input")),
    "/api/embed": ("vectors", _view(EmbedBody, "input")),
    "/api/embeddings": ("vectors", _view(LegacyEmbedBody)),
    "/v1/rerank": ("vectors", _view(RerankBody, "documents")),
    "/v1/batches": ("batch", _view(BatchBody)),
}
_ROWS = {**_ROWS, "/rerank": _ROWS["/v1/rerank"]}
