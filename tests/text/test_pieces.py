"""A token's piece is what the tokenizer library's own decoder makes of it."""

import random

import pytest
import tokenizers
from tokenizers import decoders, models

from penstock.errors import ModelFileError
from penstock.runtime.text.tokenizer.pieces import byte_alphabet
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from tests.real import DEFAULT, GEMMA, RANDOM_LLAMA
from tests.text.sources import NO_SPECIAL, real_tokenizer, small_tokenizers

FAMILIES = ("byte-level", "sentence-piece", "sentence-piece-prefix", "word-piece", "metaspace", "no-decoder")


def check_equal(tokenizer: Tokenizer, ids: list[int], skip_special: bool) -> None:
    expected = tokenizer.backend.decode(ids, skip_special_tokens=skip_special)
    assert tokenizer.decode(ids, skip_special=skip_special) == expected, ids


def without_bytes(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Drop byte tokens: the library shows a broken run of them otherwise than as UTF-8 (one U+FFFD a byte)."""
    return [i for i in ids if not (tokenizer.token(i) or "").startswith("<0x")]


@pytest.mark.parametrize("name", FAMILIES)
def test_decoding_equals_the_library(name: str) -> None:
    tokenizer = small_tokenizers()[name]
    rng = random.Random(0)
    for _ in range(500):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(16))]
        check_equal(tokenizer, without_bytes(tokenizer, ids), rng.random() < 0.5)


@pytest.mark.parametrize("name", [DEFAULT, GEMMA, RANDOM_LLAMA])
def test_decoding_equals_the_library_on_real_vocabularies(name: str) -> None:
    tokenizer = real_tokenizer(name)
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(30))]
        check_equal(tokenizer, without_bytes(tokenizer, ids), rng.random() < 0.5)


@pytest.mark.parametrize("name", ["sentence-piece", "sentence-piece-prefix"])
def test_whole_characters_of_byte_tokens_equal_the_library(name: str) -> None:
    tokenizer = small_tokenizers()[name]
    for text in ("日本", "a👍b", "\x00\t\n", "👍 👎  ü"):
        check_equal(tokenizer, tokenizer.encode(text, special=True), True)


def test_token_bytes_are_exact() -> None:
    byte_level, piece = small_tokenizers()["byte-level"], small_tokenizers()["sentence-piece"]
    assert byte_level.token_bytes(byte_level.token_id("ä½") or -1) == b"\xe4\xbd"
    assert byte_level.token_bytes(byte_level.token_id("Ġthe") or -1) == b" the"
    assert piece.token_bytes(piece.token_id("<0xE4>") or -1) == b"\xe4"
    assert piece.token_bytes(piece.token_id("▁the") or -1) == b" the"
    assert byte_level.token_bytes(10**9) == b""


@pytest.mark.parametrize("name", [DEFAULT, GEMMA, RANDOM_LLAMA])
def test_token_bytes_of_a_text_are_its_bytes(name: str) -> None:
    tokenizer = real_tokenizer(name)
    for text in ("Hello  world", "日本語 👩‍👩‍👧\x00", "é\u0301 \n\n\t x"):
        ids = tokenizer.encode(text, special=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).lstrip(b" ") == text.encode()


def test_every_byte_has_one_character() -> None:
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert set(byte_alphabet()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
    ],
)
def test_a_decoder_that_looks_ahead_is_refused_by_name(decoder: decoders.Decoder) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoder
    with pytest.raises(ModelFileError, match="decoder"):
        Tokenizer(backend, NO_SPECIAL)
