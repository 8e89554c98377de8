"""What the router reads of a request: enough to route, limit and price it; the rest is passed on as it came.

Prompts are cut into runs of bytes of the JSON as sent, and each run is named by a hash of it and all before it. Two requests
share the names of what they share from the beginning on, which is what a prefix cache shares too: no tokenizer is needed, and
it works in front of any engine.
"""

import contextlib
from hashlib import blake2b

import msgspec

from penstock.service.marks import TokenCount

CHUNK_BYTES = 256
"""Of a prompt that one hash stands for, some 64 tokens."""
MAX_CHUNKS = 512
BYTES_PER_TOKEN = 4

_CHUNK = blake2b(digest_size=8, person=b"penstock.chunk")


class Wanted(msgspec.Struct):
    """The few fields of a body that matter here, whatever its dialect."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    seed: int | None = None
    logprobs: bool | int | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    previous_response_id: str | None = None
    input_file_id: str | None = None
    conversation: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    stream_options: msgspec.Raw = msgspec.Raw()

    @property
    def session(self) -> str:
        return self.session_id or self.prompt_cache_key or self.user or ""

    @property
    def prompt_bytes(self) -> bytes:
        """What is said, in the order in which templates say it."""
        raws = (self.system, self.instructions, self.tools, self.messages, self.prompt, self.input)
        parts = [bytes(raw) for raw in raws if raw]
        if parts and parts[-1][-1:] in (b"]", b'"'):
            parts[-1] = parts[-1][:-1]  # the end of a list is where the next turn goes on
        return b"".join(parts)


NOTHING = Wanted()
_decoder = msgspec.json.Decoder(Wanted)


def wanted_of(body: bytes) -> Wanted | None:
    """None where the body is no JSON object of the kind; the replica says what is wrong with it."""
    if not body:
        return NOTHING
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError:
        return _what_fits(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _what_fits(body: bytes) -> Wanted | None:
    """Fields that are of their kind; what a replica takes no notice of steers nothing here either."""
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
    fits = {}
    for one in msgspec.structs.fields(Wanted):
        if one.name in given:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                fits[one.name] = msgspec.json.decode(given[one.name], type=one.type)
    return Wanted(**fits)


def chunk_hashes(prompt: bytes, root: bytes) -> tuple[bytes, ...]:
    """Names of the prompt's full chunks. `root` keeps apart what must not be shared: models, tenants."""
    hasher, hashes = _CHUNK.copy(), []
    hasher.update(root)
    for start in range(0, min(len(prompt) - CHUNK_BYTES + 1, MAX_CHUNKS * CHUNK_BYTES), CHUNK_BYTES):
        hasher.update(prompt[start : start + CHUNK_BYTES])
        hashes.append(hasher.digest())
    return tuple(hashes)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_answer_decoder = msgspec.json.Decoder(_Answer)


def usage_in(answer: bytes) -> TokenCount | None:
    """Counts that an engine other than ours wrote into an answer or into an event of a stream."""
    try:
        usage = _answer_decoder.decode(answer).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    return TokenCount(
        max(usage.prompt_tokens or usage.input_tokens or 0, 0),
        max(usage.completion_tokens or usage.output_tokens or 0, 0),
        max((details.cached_tokens if details else 0) or 0, 0),
    )


def replaced(body: bytes, fields: dict[str, object]) -> bytes:
    """The same object with some fields set; all others keep their bytes."""
    known: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name, value in fields.items():
        known[name] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(known)
