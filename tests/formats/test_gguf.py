"""What the `gguf` package writes, we read; what is damaged or hostile, we refuse in little time and memory."""

import struct
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.errors import ModelFileError
from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.formats.quants import BLOCKS, dequantize
from tests.real import DEFAULT, GEMMA, model_path

from .files import (
    ARRAY,
    BOOL,
    F32,
    FLOAT32,
    INT32,
    Q4_0,
    STRING,
    UINT32,
    gguf_array,
    gguf_entry,
    gguf_file,
    gguf_string,
    gguf_tensor,
    lifelike_gguf,
    rewrite,
)

METADATA = {
    "add_uint8": ("test.uint8", 255),
    "add_int8": ("test.int8", -128),
    "add_uint16": ("test.uint16", 65535),
    "add_int16": ("test.int16", -32768),
    "add_uint32": ("test.uint32", 2**32 - 1),
    "add_int32": ("test.int32", -(2**31)),
    "add_uint64": ("test.uint64", 2**64 - 1),
    "add_int64": ("test.int64", -(2**63)),
    "add_float32": ("test.float32", 0.5),
    "add_float64": ("test.float64", 1e300),
    "add_bool": ("test.bool", True),
    "add_string": ("test.string", "Grüße, 世界 🙂"),
}

ARRAYS = {
    "test.words": ["", "a", "Grüße", "▁🙂", "<0x0A>"],
    "test.whole": [1, -2, 3],
    "test.real": [0.5, -1.5],
    "test.truths": [True, False, True],
}


def test_metadata_come_back_as_the_reference_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for method, (key, value) in METADATA.items():
        getattr(writer, method)(key, value)
    for key, values in ARRAYS.items():
        writer.add_array(key, values)
    _finish(writer)
    metadata = GgufFile(path).metadata
    assert metadata["general.architecture"] == "llama"
    for key, value in METADATA.values():
        assert metadata[key] == value
        assert type(metadata[key]) is type(value)
    for key, values in ARRAYS.items():
        assert list(metadata[key]) == values
    with pytest.raises(TypeError):
        metadata["test.bool"] = False  # type: ignore[index]


def test_tensors_come_back_as_the_reference_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    rng = np.random.default_rng(0)
    written = {}
    for dtype in ("F32", "F16", "BF16", "Q8_0", "Q4_1", "Q6_K", "MXFP4", "I32"):
        values, size = BLOCKS[dtype]
        data = rng.integers(0, 256, (2, 3, 2 * size), dtype=np.uint8)
        written[f"tensor.{dtype}"] = (dtype, (2, 3, 2 * values), data)
        writer.add_tensor(f"tensor.{dtype}", data, raw_dtype=gguf.GGMLQuantizationType[dtype])
    _finish(writer)
    file = GgufFile(path)
    assert file.names == tuple(written)
    for name, (dtype, shape, data) in written.items():
        raw = file.tensor(name)
        assert (raw.name, raw.dtype, raw.shape) == (name, dtype, shape)
        assert raw.data.tobytes() == data.tobytes()
        assert not raw.data.flags.writeable
        assert not raw.data.flags.owndata


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_lifelike_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(lifelike_gguf())
    file = GgufFile(path)
    assert file.tensor("token_embd.weight").shape == (8, 32)
    assert file.tensor("blk.0.attn_q.weight").data[0] == 192
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 40


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_in_use_are_read(tmp_path: Path, version: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_file([], [gguf_tensor("a", [2], F32, 0)], b"12345678", version=version))
    assert GgufFile(path).tensor("a").data.tobytes() == b"12345678"


def test_strings_are_read_again_whenever_they_are_asked_for(tmp_path: Path) -> None:
    words = ["", "a", "\u00e9t\u00e9", "\U0001f642" * 3]
    path = tmp_path / "model.gguf"
    path.write_bytes(
        gguf_file([gguf_array("a", STRING, len(words), b"".join(map(gguf_string, words))), uint32("b", 7)])
    )
    texts = GgufFile(path).metadata["a"]
    assert isinstance(texts, Sequence)
    assert list(texts) == list(texts) == words
    assert len(texts) == 4
    assert texts[-1] == words[-1]
    assert texts[1:3] == words[1:3]
    assert GgufFile(path).metadata["b"] == 7


def test_a_token_that_is_not_text_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_file([gguf_array("a", STRING, 2, gguf_string("b") + gguf_string(b"\xff"))]))
    texts = GgufFile(path).metadata["a"]
    assert isinstance(texts, Sequence)
    with pytest.raises(ModelFileError, match=r"model\.gguf.*'a'.*not UTF-8"):
        list(texts)


def uint32(key: str, value: int) -> bytes:
    return gguf_entry(key, UINT32, struct.pack("<I", value))


ARCHITECTURE = gguf_entry("general.architecture", STRING, gguf_string("llama"))
ONE_TENSOR = [gguf_tensor("weight", [8], F32, 0)]
DATA = bytes(64)

HOSTILE = {
    "bad magic": (gguf_file(magic=b"GGML"), "not a GGUF file"),
    "four bytes": (b"GGUF", "version needs 4 bytes"),
    "three bytes": (b"GGU", "not a GGUF file"),
    "only a preamble's half": (gguf_file()[:12], "number of tensors"),
    "version 0": (gguf_file(version=0), "version 0"),
    "version 1": (gguf_file(version=1), "version 1"),
    "future version": (gguf_file(version=4), "version 4"),
    "big-endian": (gguf_file(version=3 << 24), "big-endian"),
    "2^63 keys": (gguf_file(num_keys=2**63), "9223372036854775808 metadata keys"),
    "2^64 - 1 tensors": (gguf_file(num_tensors=2**64 - 1), "18446744073709551615 tensors"),
    "more keys than bytes": (gguf_file(num_keys=60_000), "and 60000 metadata keys needs 840000 bytes"),
    "more tensors than bytes": (gguf_file(num_tensors=60_000), "table of 60000 tensors"),
    "empty key": (gguf_file([gguf_entry("", BOOL, b"\1")]), "key is empty"),
    "duplicate key": (gguf_file([uint32("a", 1), uint32("a", 1)]), "'a' appears twice"),
    "key of 2^16 bytes": (gguf_file([gguf_entry("k" * 65536, BOOL, b"\1")]), "at most 65535"),
    "key that is not text": (gguf_file([gguf_entry(b"\xff", BOOL, b"\1")]), "not UTF-8"),
    "string longer than the file": (gguf_file([gguf_entry("a", STRING, struct.pack("<Q", 2**40))]), "are left"),
    "string of 2^64 - 1": (gguf_file([gguf_entry("a", STRING, struct.pack("<Q", 2**64 - 1))]), "are left"),
    "string that is not text": (gguf_file([gguf_entry("a", STRING, gguf_string(b"\xc3"))]), "not UTF-8"),
    "truth value 2": (gguf_file([gguf_entry("a", BOOL, b"\2")]), "neither 0 nor 1"),
    "truth values 0 1 2": (gguf_file([gguf_array("a", BOOL, 3, b"\0\1\2")]), "neither 0 nor 1"),
    "unknown type": (gguf_file([gguf_entry("a", 13, b"")]), "unknown type 13"),
    "array of unknown type": (gguf_file([gguf_array("a", 99, 1, b"")]), "unknown type 99"),
    "number cut short": (gguf_file([gguf_entry("a", 12, b"\0\0")], alignment=1), "needs 8 bytes"),
    "array of 2^62 numbers": (gguf_file([gguf_array("a", INT32, 2**62, b"")]), "are left"),
    "array of 2^63 bytes": (gguf_file([gguf_array("a", 0, 2**63, b"")]), "are left"),
    "array of 2^60 strings": (gguf_file([gguf_array("a", STRING, 2**60, b"")]), "are left"),
    "array of 2^31 floats": (gguf_file([gguf_array("a", FLOAT32, 2**31, b"\0" * 64)]), "are left"),
    "array cut short": (gguf_file([gguf_array("a", STRING, 3, gguf_string("bc" * 20))], alignment=1), "past the end"),
    "nested array": (gguf_file([gguf_array("a", ARRAY, 1, struct.pack("<IQ", 0, 0))]), "array of arrays"),
    "nested 2000 deep": (gguf_file([gguf_array("a", ARRAY, 1, struct.pack("<IQ", 9, 1) * 2000)]), "array of arrays"),
    "token longer than INT32_MAX": (
        gguf_file([gguf_array("tokenizer.ggml.tokens", STRING, 1, struct.pack("<Q", 2**31))]),
        "2147483648 bytes long",
    ),
    "architecture that is a number": (gguf_file([uint32("general.architecture", 1)]), "not a string"),
    "block_count 0": (gguf_file([ARCHITECTURE, uint32("llama.block_count", 0)]), "not a count of layers"),
    "block_count a string": (
        gguf_file([ARCHITECTURE, gguf_entry("llama.block_count", STRING, gguf_string("2"))]),
        "not a count of layers",
    ),
    "block_count a truth value": (gguf_file([ARCHITECTURE, gguf_entry("llama.block_count", BOOL, b"\1")]), "not a count"),
    "block_count an array": (gguf_file([ARCHITECTURE, gguf_array("llama.block_count", 0, 9, b"\1" * 9)]), "not a count"),
    "part of a split model": (gguf_file([gguf_entry("split.count", 2, b"\3\0")]), "one of 3 parts"),
    "alignment 0": (gguf_file([uint32("general.alignment", 0)]), "power of two"),
    "alignment 24": (gguf_file([uint32("general.alignment", 24)]), "power of two"),
    "alignment -8": (gguf_file([gguf_entry("general.alignment", INT32, struct.pack("<i", -8))]), "power of two"),
    "alignment a string": (gguf_file([gguf_entry("general.alignment", STRING, gguf_string("32"))]), "power of two"),
    "alignment beyond the file": (gguf_file([uint32("general.alignment", 2**31)], ONE_TENSOR, DATA), "past the end"),
    "empty tensor name": (gguf_file([], [gguf_tensor("", [8], F32, 0)], DATA), "name is empty"),
    "duplicate tensor": (gguf_file([], [*ONE_TENSOR, gguf_tensor("weight", [8], F32, 32)], DATA), "appears twice"),
    "no dimensions": (gguf_file([], [gguf_tensor("a", [], F32, 0)], DATA), "has 0 dimensions"),
    "five dimensions": (gguf_file([], [gguf_tensor("a", [1] * 5, F32, 0)], DATA), "has 5 dimensions"),
    "2^32 - 1 dimensions": (gguf_file([], [gguf_tensor("a", [], F32, 0, 2**32 - 1)], DATA), "4294967295 dimensions"),
    "zero dimension": (gguf_file([], [gguf_tensor("a", [8, 0], F32, 0)], DATA), "no tensor can have"),
    "product beyond 64 bits": (gguf_file([], [gguf_tensor("a", [2**32, 2**32, 2], F32, 0)], DATA), "no tensor can have"),
    "product that wraps to 8": (gguf_file([], [gguf_tensor("a", [2**61 + 1, 8], F32, 0)], DATA), "no tensor can have"),
    "bytes beyond 64 bits": (gguf_file([], [gguf_tensor("a", [2**62], F32, 0)], DATA), "past the end"),
    "dimension that truncates to 8 in 32 bits": (gguf_file([], [gguf_tensor("a", [2**32 + 8], F32, 0)], DATA), "past the end"),
    "two near-maximal tensors": (
        gguf_file([], [gguf_tensor("a", [2**61 - 8], F32, 0), gguf_tensor("b", [2**61 - 8], F32, 0)], DATA),
        "past the end",
    ),
    "row of half a block": (gguf_file([], [gguf_tensor("a", [16], Q4_0, 0)], DATA), "not a multiple of the 32"),
    "type without a reader": (gguf_file([], [gguf_tensor("a", [32], 9, 0)], DATA), "type Q8_1, which is not read"),
    "unknown tensor type": (gguf_file([], [gguf_tensor("a", [32], 77, 0)], DATA), "type number 77"),
    "misaligned": (gguf_file([], [gguf_tensor("a", [8], F32, 8)], DATA), "not a multiple of 32"),
    "overlap": (gguf_file([], [gguf_tensor("a", [16], F32, 0), gguf_tensor("b", [8], F32, 32)], DATA), "where the last ended"),
    "gap": (gguf_file([], [gguf_tensor("a", [8], F32, 32)], DATA), "where the last ended"),
    "offset 2^64 - 32": (gguf_file([], [gguf_tensor("a", [8], F32, 2**64 - 32)], DATA), "where the last ended"),
    "one byte short": (gguf_file([], [gguf_tensor("a", [16], F32, 0)], DATA)[:-1], "1 bytes past the end"),
    "no data at all": (gguf_file([], ONE_TENSOR), "past the end"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_quickly_and_cheaply(tmp_path: Path, case: str) -> None:
    data, fault = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(ModelFileError, match=fault) as caught:
            GgufFile(path)
        took, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600
    assert took < 2
    assert peak < len(data) + (1 << 20)


def test_a_flood_of_strings_is_refused_before_it_is_made(tmp_path: Path) -> None:
    """Ten bytes on disk would become some sixty in memory."""
    count = (1 << 21) + 1
    path = tmp_path / "flood.gguf"
    path.write_bytes(gguf_file([gguf_array("a", STRING, count, gguf_string("ab") * count)]))
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="more than 2097152 strings"):
            GgufFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = lifelike_gguf()
    path = tmp_path / "cut.gguf"
    for length in range(1, len(whole)):
        rewrite(path, whole[:length])
        with pytest.raises(ModelFileError):
            GgufFile(path)


@pytest.mark.parametrize(
    ("name", "num_tensors", "num_words"),
    [(DEFAULT, 272, 49152), (GEMMA, 236, 262144)],
)
def test_a_real_vocabulary_is_read_in_a_moment(name: str, num_tensors: int, num_words: int) -> None:
    path = model_path(name)
    started = time.process_time()
    file = GgufFile(path)
    assert time.process_time() - started < 2  # measured: 0.06 s and 0.15 s
    assert len(file.names) == num_tensors
    assert len(file.metadata["tokenizer.ggml.tokens"]) == len(set(file.metadata["tokenizer.ggml.tokens"])) == num_words
    assert file.tensor("token_embd.weight").shape[0] == num_words


def test_a_real_tensor_has_sane_values() -> None:
    file = GgufFile(model_path(DEFAULT))
    raw = file.tensor("blk.0.attn_q.weight")
    assert (raw.dtype, raw.shape) == ("Q4_1", (576, 576))
    values = dequantize(raw)
    assert np.isfinite(values).all()
    assert 0.01 < values.std() < 1
