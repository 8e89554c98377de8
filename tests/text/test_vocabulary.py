"""GGUF vocabularies: SentencePiece's own algorithm as oracle, and metadata that nobody should trust."""

import heapq
import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from penstock.errors import ModelFileError
from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.text.tokenizer.pieces import SPACE_MARK
from penstock.runtime.text.tokenizer.splits import SPLITS
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from tests.real import GEMMA, RANDOM_LLAMA, model_path
from tests.text.sources import (
    SAMPLES,
    byte_level_metadata,
    random_text,
    real_tokenizer,
    sentence_piece_metadata,
    small_tokenizers,
    word_piece_metadata,
)


class SentencePieceOracle:
    """The published algorithm, plainly: join the best-scored neighbours, leftmost first, until none join."""

    def __init__(self, metadata: Mapping[str, Any], *, prefix: bool) -> None:
        tokens = [SPACE_MARK * len(t) if t and not t.strip(" ") else t for t in metadata["tokenizer.ggml.tokens"]]
        types = list(metadata["tokenizer.ggml.token_type"])
        scores = list(metadata["tokenizer.ggml.scores"])
        self._prefix = prefix
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._scores = {token: scores[index] for index, token in enumerate(tokens) if types[index] == 1}
        self._whole = {token for index, token in enumerate(tokens) if types[index] == 4}
        self._longest = max((len(token) for token in self._whole), default=0)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        segment = ""
        text = text.replace(" ", SPACE_MARK)
        position = 0
        while position < len(text):
            whole = next(
                (
                    text[position : position + length]
                    for length in range(self._longest, 0, -1)
                    if text[position : position + length] in self._whole and position + length <= len(text)
                ),
                None,
            )
            if whole is None:
                segment += text[position]
                position += 1
            else:
                ids += self._segment(segment)
                ids.append(self._ids[whole])
                segment = ""
                position += len(whole)
        return ids + self._segment(segment)

    def _segment(self, text: str) -> list[int]:
        if not text:
            return []
        symbols: list[str | None] = list(SPACE_MARK + text if self._prefix else text)
        following = [*range(1, len(symbols)), None]
        before = [None, *range(len(symbols) - 1)]
        queue: list[tuple[float, int, str]] = []

        def offer(left: int | None) -> None:
            right = None if left is None else following[left]
            if left is not None and right is not None:
                joined = f"{symbols[left]}{symbols[right]}"
                if joined in self._scores:
                    heapq.heappush(queue, (-self._scores[joined], left, joined))

        for index in range(len(symbols)):
            offer(index)
        while queue:
            _, left, joined = heapq.heappop(queue)
            right = following[left]
            if symbols[left] is None or right is None or f"{symbols[left]}{symbols[right]}" != joined:
                continue
            symbols[left], symbols[right] = joined, None
            following[left] = following[right]
            if following[left] is not None:
                before[following[left]] = left
            offer(before[left])
            offer(left)
        return [token_id for symbol in symbols if symbol is not None for token_id in self._symbol(symbol)]

    def _symbol(self, symbol: str) -> list[int]:
        if symbol in self._scores:
            return [self._ids[symbol]]
        return [self._ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]


@pytest.mark.parametrize(("name", "prefix"), [(GEMMA, False), (RANDOM_LLAMA, True)])
def test_real_sentence_piece_ids_equal_the_algorithm(name: str, prefix: bool) -> None:
    oracle = SentencePieceOracle(GgufFile(model_path(name)).metadata, prefix=prefix)
    tokenizer = real_tokenizer(name)
    rng = random.Random(0)
    texts = [*SAMPLES, " " * 100 + "x", "\n" * 70, *(random_text(rng, "ab \n\t1.é日👍'<-aee", 60) for _ in range(300))]
    for text in texts:
        assert tokenizer.encode(text, special=False) == oracle.encode(text), text


@pytest.mark.parametrize("prefix", [False, True])
def test_small_sentence_piece_ids_equal_the_algorithm(prefix: bool) -> None:
    oracle = SentencePieceOracle(sentence_piece_metadata(prefix=prefix), prefix=prefix)
    tokenizer = small_tokenizers()["sentence-piece-prefix" if prefix else "sentence-piece"]
    rng = random.Random(1)
    for _ in range(1000):
        text = random_text(rng, "aabthe  \n你x", 24)
        assert tokenizer.encode(text, special=False) == oracle.encode(text), text


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_every_split_loses_no_text(name: str) -> None:
    metadata = byte_level_metadata() | {"tokenizer.ggml.pre": name}
    tokenizer = Tokenizer.from_gguf(metadata)
    for text in SAMPLES:
        decoded = tokenizer.decode(tokenizer.encode(text, special=False))
        assert decoded == text or SPLITS[name].nfc


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(ModelFileError, match="newfangled"):
        Tokenizer.from_gguf(byte_level_metadata() | {"tokenizer.ggml.pre": "newfangled"})


HOSTILE: list[tuple[str, Any]] = [
    ("tokenizer.ggml.model", "sudoku"),
    ("tokenizer.ggml.model", 7),
    ("tokenizer.ggml.model", None),
    ("tokenizer.ggml.tokens", []),
    ("tokenizer.ggml.tokens", ["a", 1]),
    ("tokenizer.ggml.tokens", "abc"),
    ("tokenizer.ggml.tokens", ["a", "a"]),
    ("tokenizer.ggml.tokens", ["a\ud800"]),
    ("tokenizer.ggml.token_type", [1]),
    ("tokenizer.ggml.token_type", "normal"),
    ("tokenizer.ggml.scores", [1.0]),
    ("tokenizer.ggml.bos_token_id", -1),
    ("tokenizer.ggml.bos_token_id", 1 << 40),
    ("tokenizer.ggml.eos_token_id", True),
    ("tokenizer.ggml.eot_token_id", "2"),
    ("tokenizer.ggml.unknown_token_id", 5.0),
]


@pytest.mark.parametrize(
    "family", [byte_level_metadata, word_piece_metadata, lambda: sentence_piece_metadata(prefix=True)]
)
@pytest.mark.parametrize(("key", "value"), HOSTILE)
def test_hostile_metadata_is_refused(family: Any, key: str, value: Any) -> None:
    metadata = dict(family())
    if value is None:
        del metadata[key]
    else:
        metadata[key] = value
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml"):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("key", ["add_bos_token", "add_eos_token", "add_space_prefix"])
def test_flags_are_true_or_false(key: str) -> None:
    for value in ("yes", 1, None):
        with pytest.raises(ModelFileError, match=key):
            Tokenizer.from_gguf(sentence_piece_metadata(prefix=True) | {f"tokenizer.ggml.{key}": value})


@pytest.mark.parametrize("merge", ["", " ", "a", "a b c", "zz a", "a ĠĠĠ", "é  é", "a\nb"])
def test_merges_that_join_nothing_are_refused(merge: str) -> None:
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.merges"] = [*metadata["tokenizer.ggml.merges"], merge]  # type: ignore[misc]
    with pytest.raises(ModelFileError, match="merges"):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_must_be_finite(bad: float) -> None:
    metadata = sentence_piece_metadata(prefix=False)
    scores = np.array(metadata["tokenizer.ggml.scores"], dtype=np.float32)
    scores[-1] = bad
    with pytest.raises(ModelFileError, match="scores"):
        Tokenizer.from_gguf(metadata | {"tokenizer.ggml.scores": scores})


@pytest.mark.parametrize("kind", [7, -1, 300])
def test_token_types_must_be_known(kind: int) -> None:
    metadata = byte_level_metadata()
    types = np.array(metadata["tokenizer.ggml.token_type"], dtype=np.int32)
    types[5] = kind
    with pytest.raises(ModelFileError, match="token_type"):
        Tokenizer.from_gguf(metadata | {"tokenizer.ggml.token_type": types})


def test_random_damage_is_refused_or_harmless() -> None:
    """Whatever is put in place of a value, there is a tokenizer or a `ModelFileError`; nothing else comes out."""
    rng = random.Random(0)
    junk: list[Any] = [
        None,
        0,
        -1,
        2**70,
        1.5,
        math.nan,
        "x",
        "",
        [],
        [""],
        ["a", "b"],
        {},
        b"x",
        True,
        [[1]],
        np.zeros(3),
    ]
    for _ in range(300):
        metadata: dict[str, Any] = dict(
            rng.choice([byte_level_metadata(), word_piece_metadata(), sentence_piece_metadata(prefix=False)])
        )
        for key in rng.sample(sorted(metadata), 2):
            metadata[key] = rng.choice(junk)
        try:
            Tokenizer.from_gguf(metadata).encode("the ab", special=True)
        except ModelFileError:
            continue


def test_harmony_vocabularies_do_not_end_at_a_message() -> None:
    metadata = byte_level_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|end|>", "<|return|>", "<|call|>"]  # type: ignore[misc]
    types = [*metadata["tokenizer.ggml.token_type"], 3, 3, 3]  # type: ignore[misc]
    tokenizer = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})
    assert tokenizer.token_id("<|end|>") not in tokenizer.eos_ids
    assert {tokenizer.token_id("<|return|>"), tokenizer.token_id("<|call|>")} <= tokenizer.eos_ids
