"""Tokenizers as they are published without a tokenizer.json: SentencePiece's `tokenizer.model`, tiktoken's lines of base64.

Both are brought to what a GGUF file would say of them, and built by the same code. The files are not trusted: lengths are
bounded, and every merge is checked against the vocabulary where it is used.
"""

import base64
import binascii
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.errors import ModelFileError
from penstock.runtime.text.tokenizer.pieces import spelt
from penstock.runtime.text.tokenizer.vocabulary import MAX_TOKENS, TokenType

MAX_BYTES = 1 << 27
BPE = 2
"""SentencePiece's `model_type` of vocabularies that merge, which is what decoders have."""
VARINT, FIXED64, TEXT, FIXED32 = 0, 1, 2, 5
LLAMA3_RESERVED = 256
_LLAMA3_NAMED = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "<|eot_id|>",
}
"""Special tokens behind Llama 3's vocabulary, by number; the others are reserved."""


def published_metadata(directory: Path, config: Mapping[str, Any]) -> dict[str, object] | None:
    """What a GGUF file would say of the directory's tokenizer; None where there is none of these kinds."""
    path = directory / "tokenizer.model"
    if not path.is_file():
        path = next(iter(sorted(directory.glob("*.tiktoken"))), path)
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_BYTES:
        raise ModelFileError(f"{path} is too large for a tokenizer")
    data = path.read_bytes()
    found = _tiktoken(path, data, config) if _is_tiktoken(data) else _sentence_piece(path, data)
    return found | _added(found, config)


def _added(found: Mapping[str, object], config: Mapping[str, Any]) -> dict[str, object]:
    """Tokens that tokenizer_config.json adds behind the vocabulary."""
    entries = config.get("added_tokens_decoder")
    if not isinstance(entries, dict):
        return {}
    tokens, types = list(found["tokenizer.ggml.tokens"]), list(found["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    scores = list(found["tokenizer.ggml.scores"]) if "tokenizer.ggml.scores" in found else None  # type: ignore[call-overload]
    for number, entry in sorted((int(key), value) for key, value in entries.items() if key.isdecimal()):
        if number > MAX_TOKENS or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise ModelFileError(f"tokenizer_config.json: added_tokens_decoder has an entry {number} that is no token")
        while len(tokens) <= number:
            tokens.append(f"[PAD{len(tokens)}]")
            types.append(int(TokenType.UNUSED))
            if scores is not None:
                scores.append(0.0)
        tokens[number] = entry["content"]
        if types[number] not in (TokenType.UNKNOWN, TokenType.BYTE):
            types[number] = int(TokenType.CONTROL if entry.get("special") else TokenType.USER_DEFINED)
    changed: dict[str, object] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    return changed if scores is None else changed | {"tokenizer.ggml.scores": scores}


# ---- SentencePiece: a message of protocol buffers


def _sentence_piece(path: Path, data: bytes) -> dict[str, object]:
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for field, value in _fields(data):
            if field == 1:
                piece = dict(_fields(value))
                tokens.append(piece[1].decode())
                scores.append(float(piece.get(2, 0.0)))
                types.append(int(piece.get(3, TokenType.NORMAL)))
            elif field == 2:
                trainer = dict(_fields(value))
            elif field == 3:
                normalizer = dict(_fields(value))
    except (struct.error, IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path} is no SentencePiece model ({error}); fetch it again") from None
    if not tokens or len(tokens) > MAX_TOKENS:
        raise ModelFileError(f"{path} is no SentencePiece model: it has {len(tokens)} tokens; fetch it again")
    if trainer.get(3, 1) != BPE:
        raise ModelFileError(
            f"{path} holds a vocabulary that does not merge (unigram), which is not read; save a tokenizer.json"
        )
    found: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(3, 1)),
    }
    for name, field, default in (("unknown", 40, 0), ("bos", 41, 1), ("eos", 42, 2)):
        number = int(trainer.get(field, default))
        if 0 <= number < len(tokens):
            found[f"tokenizer.ggml.{name}_token_id"] = number
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message's fields; what is nested stays bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        value: Any
        if kind == VARINT:
            value, place = _varint(data, place)
        elif kind == TEXT:
            size, place = _varint(data, place)
            if place + size > len(data):
                raise ValueError("cut short")
            value, place = data[place : place + size], place + size
        elif kind in (FIXED32, FIXED64):
            code, size = ("<f", 4) if kind == FIXED32 else ("<d", 8)
            (value,) = struct.unpack_from(code, data, place)
            place += size
        else:
            raise ValueError(f"a field of kind {kind}")
        yield key >> 3, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
    return (value - (1 << 64) if value >> 63 else value), place


# ---- tiktoken: a token and its rank a line


def _is_tiktoken(data: bytes) -> bool:
    first = data.partition(b"\n")[0].split()
    if len(first) != 2 or not first[1].isdigit():
        return False
    try:
        base64.b64decode(first[0], validate=True)
    except binascii.Error:
        return False
    return True


def _tiktoken(path: Path, data: bytes, config: Mapping[str, Any]) -> dict[str, object]:
    ranks: dict[bytes, int] = {}
    try:
        for line in data.splitlines():
            if line.strip():
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (ValueError, binascii.Error):
        raise ModelFileError(f"{path} has a line that is not a token in base64 and its rank; fetch it again") from None
    if sorted(ranks.values()) != list(range(len(ranks))) or len(ranks) > MAX_TOKENS:
        raise ModelFileError(f"{path} has ranks that are not 0, 1, 2, ...; fetch it again")
    ordered = sorted(ranks, key=ranks.__getitem__)
    tokens, types = [spelt(token) for token in ordered], [int(TokenType.NORMAL)] * len(ordered)
    is_llama = path.name == "tokenizer.model"
    found: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe" if is_llama else "qwen2",
    }
    if is_llama and "added_tokens_decoder" not in config:
        first = len(tokens)
        named = {first + place: text for place, text in _LLAMA3_NAMED.items()}
        tokens += [named.get(first + place, f"<|reserved_special_token_{place}|>") for place in range(LLAMA3_RESERVED)]
        types += [int(TokenType.CONTROL)] * LLAMA3_RESERVED
        found |= {"tokenizer.ggml.bos_token_id": first, "tokenizer.ggml.eos_token_id": first + 1}
        found["tokenizer.ggml.eot_token_id"] = first + 9
    found["tokenizer.ggml.merges"] = [f"{spelt(left)} {spelt(right)}" for left, right in _merges(ordered, ranks)]
    return found | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}


def _merges(ordered: list[bytes], ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The two tokens that each token is made of: merged by the ranks below its own until two are left."""
    for token in ordered:
        if len(token) < 2:
            continue
        parts = [token[place : place + 1] for place in range(len(token))]
        while len(parts) > 2:
            pairs = [(ranks.get(a + b, MAX_TOKENS), place) for place, (a, b) in enumerate(pairwise(parts))]
            best, place = min(pairs)
            if best >= ranks[token]:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]
