"""A tokenizer published as SentencePiece or tiktoken gives the tokens of the same vocabulary in a GGUF file."""

import base64
import struct
from pathlib import Path

import pytest

from penstock.errors import ModelFileError
from penstock.runtime.text.tokenizer.pieces import spelt
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer

TEXT = "the theme: other ether <s> hé"
PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "\u2581",
    "t",
    "h",
    "e",
    "th",
    "the",
    "\u2581the",
]
PIECES += ["r", "o", "m", "er", "he", "her", ":"]


def number(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + number(value >> 7)


def field(place: int, content: bytes) -> bytes:
    return number(place << 3 | 2) + number(len(content)) + content


def sentence_piece(kind: int = 2) -> tuple[bytes, dict[str, object]]:
    types = [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) - 259)]
    scores = [-float(place) for place in range(len(PIECES))]
    data = b""
    for piece, score, type_ in zip(PIECES, scores, types):
        data += field(1, field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + number(type_))
    metadata: dict[str, object] = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": PIECES}
    metadata |= {"tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": types}
    return data + field(2, b"\x18" + number(kind)), metadata


def test_sentence_piece_is_read(tmp_path: Path) -> None:
    data, metadata = sentence_piece()
    (tmp_path / "tokenizer.model").write_bytes(data)
    ours, theirs = Tokenizer.from_directory(tmp_path), Tokenizer.from_gguf(metadata)
    assert ours.encode(TEXT, special=True) == theirs.encode(TEXT, special=True)
    assert (ours.bos_id, ours.eos_ids) == (1, frozenset({2}))


def test_tiktoken_is_read(tmp_path: Path) -> None:
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"he", b"the", b" the", b"er"]
    lines = [base64.b64encode(token) + f" {rank}".encode() for rank, token in enumerate(tokens)]
    (tmp_path / "qwen.tiktoken").write_bytes(b"\n".join(lines))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"eos_token": "<end>", "added_tokens_decoder": {"261": {"content": "<end>", "special": true}}}'
    )
    ours = Tokenizer.from_directory(tmp_path)
    merges = ["t h", "h e", "th e", "Ġ the", "e r"]
    types = [1] * 261 + [3]
    theirs = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": [*map(spelt, tokens), "<end>"],
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": merges,
        }
    )
    assert ours.encode(TEXT + "<end>", special=True) == theirs.encode(TEXT + "<end>", special=True)
    assert ours.eos_ids == frozenset({261})
    assert ours.decode(ours.encode(TEXT, special=False)) == TEXT


@pytest.mark.parametrize("fault", ["cut", "unigram", "noise", "ranks"])
def test_files_that_cannot_be_used_get_one_clear_error(tmp_path: Path, fault: str) -> None:
    data = sentence_piece(1 if fault == "unigram" else 2)[0]
    files = {"cut": data[:-40], "unigram": data, "noise": b"\xff" * 400, "ranks": b"dGg= 0\naGU= 5\n"}
    (tmp_path / "tokenizer.model").write_bytes(files[fault])
    with pytest.raises(ModelFileError, match=r"tokenizer\.model"):
        Tokenizer.from_directory(tmp_path)
