"""Token ids equal those of reference tokenizers; special tokens are parsed only where asked."""

import json
import random
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer, get_gguf_tokenizer

from penstock.errors import ModelFileError, RequestError
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from tests.real import DEFAULT, GEMMA, MINILM, RANDOM_LLAMA, WIKITEXT, model_path
from tests.text.sources import SAMPLES, random_text, real_tokenizer, small_tokenizers

MIXED = "ab \n\t1.é日👍'<▁-"


@cache
def samples() -> tuple[str, ...]:
    """Fixed samples, slices of an encyclopedia, and random mixtures of awkward characters."""
    rng = random.Random(0)
    wiki = model_path(WIKITEXT).read_text()
    slices = [wiki[start : start + 2000] for start in (rng.randrange(len(wiki)) for _ in range(40))]
    return (*SAMPLES, *slices, *(random_text(rng, MIXED, 40) for _ in range(600)))


@cache
def transformers_tokenizer(name: str, architecture: str) -> tokenizers.Tokenizer:
    _, values, _ = get_gguf_tokenizer(str(model_path(name)))
    backend, _ = convert_gguf_tokenizer(architecture, values)
    return backend


def check_same_ids(tokenizer: Tokenizer, reference: tokenizers.Tokenizer, texts: tuple[str, ...]) -> None:
    for text in texts:
        expected = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, special=False) == expected, text
        assert tokenizer.decode(expected, skip_special=False) == reference.decode(expected, skip_special_tokens=False)


def test_byte_level_ids_equal_transformers() -> None:
    reference = transformers_tokenizer(DEFAULT, "llama")
    # The conversion has no entry for this family's cut, so it is set as the published tokenizer.json has it.
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    check_same_ids(real_tokenizer(DEFAULT), reference, samples())


def test_sentence_piece_ids_with_prefix_equal_transformers() -> None:
    # The architecture whose conversion puts the prefix before every piece of text, as SentencePiece does.
    check_same_ids(real_tokenizer(RANDOM_LLAMA), transformers_tokenizer(RANDOM_LLAMA, "phi3"), samples())


@pytest.mark.slow
def test_sentence_piece_ids_equal_transformers() -> None:
    check_same_ids(real_tokenizer(GEMMA), transformers_tokenizer(GEMMA, "gemma3"), samples())


@pytest.fixture
def minilm() -> Path:
    return model_path(MINILM)


def test_directory_ids_equal_the_library(minilm: Path) -> None:
    tokenizer = Tokenizer.from_directory(minilm)
    reference = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
    reference.no_truncation()
    reference.no_padding()
    for text in samples():
        assert tokenizer.encode(text, special=True) == reference.encode(text).ids
    assert (tokenizer.special_tokens["cls_token"], tokenizer.special_tokens["sep_token"]) == ("[CLS]", "[SEP]")
    assert len(tokenizer.encode("word " * 1000, special=True)) == 1002, "the file's truncation must not apply"


def test_word_piece_from_metadata_equals_the_directory(minilm: Path) -> None:
    """The same vocabulary in the spelling of GGUF files gives the same ids."""
    reference = Tokenizer.from_directory(minilm)
    spelled, types = [], []
    for token_id in range(reference.vocab_size):
        token = reference.token(token_id) or ""
        types.append(3 if token_id in reference.special_ids else 1)
        inner = token.removeprefix("##")
        spelled.append(token if types[-1] == 3 else inner if inner != token else "▁" + token)
    tokenizer = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "bert",
            "tokenizer.ggml.tokens": spelled,
            "tokenizer.ggml.token_type": types,
        }
    )
    for text in samples():
        ids = tokenizer.encode(text, special=True)
        assert ids == reference.encode(text, special=True)
        assert tokenizer.decode(ids) == reference.decode(ids)


def test_special_text_is_special_only_where_asked() -> None:
    tokenizer = real_tokenizer(DEFAULT)
    text = "<|im_start|>user"
    start = tokenizer.token_id("<|im_start|>")
    assert start in tokenizer.encode(text, special=False)
    plain = tokenizer.encode(text, special=False, parse_special=False)
    assert not (tokenizer.special_ids & set(plain))
    assert tokenizer.decode(plain) == text


@pytest.mark.parametrize("name", ["byte-level", "sentence-piece", "sentence-piece-prefix"])
def test_plain_text_never_becomes_a_control_token(name: str) -> None:
    tokenizer = small_tokenizers()[name]
    for token_id in tokenizer.special_ids:
        text = f"a {tokenizer.token(token_id)} b"
        ids = tokenizer.encode(text, special=False, parse_special=False)
        assert not (tokenizer.special_ids & set(ids)) or name == "word-piece"
        assert tokenizer.decode(ids) == text


def test_special_adds_what_the_model_expects() -> None:
    gemma, smollm = real_tokenizer(GEMMA), real_tokenizer(DEFAULT)
    assert gemma.encode("x", special=True) == [gemma.bos_id, *gemma.encode("x", special=False)]
    assert smollm.encode("x", special=True) == smollm.encode("x", special=False), "the file says add_bos_token false"


def test_ends_of_an_answer() -> None:
    smollm, gemma = real_tokenizer(DEFAULT), real_tokenizer(GEMMA)
    assert smollm.eos_ids == {smollm.token_id("<|im_end|>"), smollm.token_id("<|endoftext|>")}
    assert gemma.eos_ids == {gemma.token_id("<eos>"), gemma.token_id("<end_of_turn>")}


def test_a_batch_of_many_is_many_batches_of_one() -> None:
    tokenizer = small_tokenizers()["byte-level"]
    texts = list(SAMPLES)
    assert tokenizer.encode_batch(texts, special=True) == [tokenizer.encode(text, special=True) for text in texts]


@pytest.mark.parametrize("name", [DEFAULT, GEMMA, RANDOM_LLAMA])
def test_a_bound_on_the_tokens_of_a_text(name: str) -> None:
    tokenizer = real_tokenizer(name)
    for text in (*samples(), " " * 5000, "=" * 5000, "\n" * 5000):
        assert tokenizer.at_least(text) <= len(tokenizer.encode(text, special=False))
    assert tokenizer.at_least("word " * 2_000_000) > 30_000


def test_both_ways_of_parsing_in_many_threads() -> None:
    tokenizer = small_tokenizers()["byte-level"]
    text = "the <|im_end|> the"
    expected = {flag: tokenizer.encode(text, special=False, parse_special=flag) for flag in (True, False)}
    wrong: list[Any] = []

    def work(flag: bool) -> None:
        for _ in range(300):
            ids = tokenizer.encode(text, special=False, parse_special=flag)
            if ids != expected[flag]:
                wrong.append(ids)

    threads = [threading.Thread(target=work, args=(bool(index % 2),)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_half_a_surrogate_pair_is_the_clients_fault() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        small_tokenizers()["byte-level"].encode("a\ud800b", special=False)


def directory_with(path: Path, files: dict[str, Any]) -> Path:
    small_tokenizers()["byte-level"].backend.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_ends_come_from_all_files(tmp_path: Path) -> None:
    directory = directory_with(
        tmp_path,
        {
            "tokenizer_config.json": {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}},
            "generation_config.json": {"eos_token_id": [0, 2]},
        },
    )
    tokenizer = Tokenizer.from_directory(directory)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, {0, 2})
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert tokenizer.encode("the 你", special=False) == small_tokenizers()["byte-level"].encode("the 你", special=False)


@pytest.mark.parametrize(
    "files",
    [
        {"generation_config.json": {"eos_token_id": 10**9}},
        {"generation_config.json": {"eos_token_id": [True]}},
        {"generation_config.json": {"eos_token_id": "2"}},
        {"tokenizer_config.json": "[1, 2]"},
        {"tokenizer_config.json": "{"},
        {"tokenizer_config.json": "[" * 100_000},
        {"tokenizer.json": '{"model": {"type": "BPE"'},
        {"tokenizer.json": '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}'},
        {"tokenizer.json": "[" * 100_000},
        {"tokenizer.json": ""},
    ],
)
def test_damaged_directories_are_named(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError):
        Tokenizer.from_directory(directory_with(tmp_path, files))


def test_a_directory_without_tokenizer_says_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)
