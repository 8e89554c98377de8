"""Tokenizers the text tests run on: small ones of every family, made here, and real ones where a model is at hand."""

import random
from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.text.tokenizer.pieces import byte_alphabet
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.runtime.text.tokenizer.vocabulary import SpecialTokens
from tests import real


@cache
def real_tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(GgufFile(real.model_path(name)).metadata)


def byte_level_metadata() -> dict[str, object]:
    """A byte-level vocabulary: all bytes, some merges (whole and broken characters), control and user-defined tokens."""
    names = {byte: character for character, byte in byte_alphabet().items()}
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(names[byte] for byte in range(256))]
    merges = []
    for text in (
        b"th",
        b"the",
        b"he",
        b" t",
        b" th",
        b" the",
        b"\xe4\xbd",
        b"\xe4\xbd\xa0",
        b"\xf0\x9f",
        b"\xbd\xa0",
        b"\xa0\xe5",
        b"ab",
    ):
        left, right = text[:-1], text[-1:]
        pair = "".join(names[byte] for byte in left), "".join(names[byte] for byte in right)
        if "".join(pair) not in tokens and pair[0] in tokens:
            tokens.append("".join(pair))
            merges.append(" ".join(pair))
    tokens += ["<think>", "</think>", "<｜tool▁call｜>"]
    types = [3, 3, 3] + [1] * (len(tokens) - 6) + [4, 4, 3]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def sentence_piece_metadata(*, prefix: bool) -> dict[str, object]:
    """A SentencePiece vocabulary with byte fallback, ties in its scores and user-defined runs of blanks."""
    pieces = ["▁", *"abcdehlortw'.", "é", "你", "th", "he", "the", "▁the", "ab", "▁a", "▁▁", "aa", "aaa", "aaaa", "or"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "\n\n", "<tool>"]
    count = len(pieces)
    scores = [0.0] * 259 + [-float(min(index, 25)) for index in range(count)] + [-1000.0, -1000.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * count + [4, 4],
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def word_piece_metadata() -> dict[str, object]:
    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "▁the",
        "▁do",
        "s",
        "ing",
        "▁.",
        "▁,",
        "▁'",
        "▁n't",
        "▁a",
        "b",
    ]
    tokens += ["▁你", "▁é", "▁do not", "▁!"]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 5 + [1] * (len(tokens) - 5),
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
    }


def metaspace_backend() -> tokenizers.Tokenizer:
    vocabulary = ["<unk>", "<s>", "▁", "▁the", "▁▁x", "a", "b", "é", "▁你"]
    backend = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(vocabulary)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    return backend


def undecorated_backend() -> tokenizers.Tokenizer:
    """No decoder at all: tokens are joined by spaces."""
    backend = tokenizers.Tokenizer(models.WordLevel({"[U]": 0, "one": 1, "two": 2, "é": 3}, unk_token="[U]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


NO_SPECIAL = SpecialTokens(None, frozenset(), {})


@cache
def small_tokenizers() -> dict[str, Tokenizer]:
    return {
        "byte-level": Tokenizer.from_gguf(byte_level_metadata()),
        "sentence-piece": Tokenizer.from_gguf(sentence_piece_metadata(prefix=False)),
        "sentence-piece-prefix": Tokenizer.from_gguf(sentence_piece_metadata(prefix=True)),
        "word-piece": Tokenizer.from_gguf(word_piece_metadata()),
        "metaspace": Tokenizer(metaspace_backend(), NO_SPECIAL),
        "no-decoder": Tokenizer(undecorated_backend(), NO_SPECIAL),
    }


SAMPLES = (
    "",
    " ",
    "Hello world",
    "  leading and trailing  ",
    "don't we'll I'M O'Reilly 's",
    "\n\n\t x\r\n\r\n  y",
    "日本語のテキスト、漢字とかな。",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "Привет, мир! Ещё",
    "한국어 텍스트 처리",
    "ภาษาไทย",
    "👩‍👩‍👧 🇩🇪 🤷🏽‍♀️ 🦙🦙",
    "def f(x):\n    return x ** 2  # ok\n\n\nclass A:\n\tpass\n",
    "a" * 50,
    " " * 30 + "x",
    "\t" * 5 + "x",
    "1234567890 3.14 1,000,000 ²½ ٣٤ 2024-01-02",
    "\x00\x01\x7f\x1b[0m",
    " \u00a0\u2003\u3000x",
    "ﬁ e\u0301 é Å ß ſ İ ı",
    '<div class="a">&amp;</div>',
    "{}[]()!@#$%^&*_+-=|\\:;\"'<>,.?/`~",
    "\ufeffbom \ufffd zero\u200bwidth a\u0300\u0316b",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓀀",
    "https://example.org/a?b=c&d=%20#e",
)


def random_text(rng: random.Random, alphabet: str, longest: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(longest)))


def random_split(rng: random.Random, items: list[int]) -> list[list[int]]:
    """The items in runs of random length, some of them empty."""
    runs, start = [], 0
    while start < len(items):
        length = rng.choice((0, 1, 1, 1, 2, 3, 7))
        runs.append(items[start : start + length])
        start += length
    return runs
