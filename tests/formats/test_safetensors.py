"""What the `safetensors` package writes, we read; what is damaged or hostile, we refuse in little time and memory."""

import json
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from penstock.errors import ModelFileError
from penstock.runtime.formats.quants import dequantize
from penstock.runtime.formats.safetensors import (
    INDEX_NAME,
    SafetensorsFile,
    ShardedSafetensors,
    confined,
    open_safetensors,
)
from tests.real import MINILM, model_path

from .files import lifelike_safetensors, rewrite, safetensors_entry, safetensors_file, write_safetensors


def test_files_come_back_as_the_reference_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    rng = np.random.default_rng(0)
    written = {
        "matrix": rng.normal(size=(3, 5)).astype(np.float32),
        "half": rng.normal(size=(2, 3, 4)).astype(np.float16),
        "whole": np.arange(7, dtype=np.int64),
        "bytes": np.arange(256, dtype=np.uint8).reshape(16, 16),
        "truth": np.array([True, False]),
        "scalar": np.array(2.5, dtype=np.float32),
        "none": np.zeros((0, 4), dtype=np.float32),
    }
    dtypes = {
        "matrix": "F32",
        "half": "F16",
        "whole": "I64",
        "bytes": "U8",
        "truth": "BOOL",
        "scalar": "F32",
        "none": "F32",
    }
    safetensors.numpy.save_file(written, path, metadata={"format": "np"})
    file = SafetensorsFile(path)
    assert set(file.names) == set(written)
    for name, tensor in written.items():
        raw = file.tensor(name)
        assert (raw.name, raw.dtype, raw.shape) == (name, dtypes[name], tensor.shape)
        assert raw.data.tobytes() == tensor.tobytes()
        assert not raw.data.flags.writeable
        assert not raw.data.flags.owndata


def test_the_lifelike_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(lifelike_safetensors())
    file = SafetensorsFile(path)
    assert file.tensor("model.layers.0.input_layernorm.weight").data[0] == 128
    assert dequantize(file.tensor("model.layers.0.input_layernorm.weight")).shape == (4,)
    assert file.tensor("model.empty").num_bytes == 0


def entry(**changes: object) -> dict[str, object]:
    return {"a": {**safetensors_entry("F32", [2], 0, 8), **changes}}


TWO = {"a": safetensors_entry("F32", [2], 0, 8), "b": safetensors_entry("F32", [2], 8, 16)}
DATA = bytes(16)
DEEP = 50_000

HOSTILE = {
    "seven bytes": (b"1234567", "claims a header"),
    "header of 0": (safetensors_file({}, header_bytes=0), "claims a header of 0"),
    "header of 1": (safetensors_file({}, header_bytes=1), "claims a header of 1"),
    "header longer than the file": (safetensors_file({}, header_bytes=3), "claims a header of 3"),
    "header of 2^63": (safetensors_file({}, header_bytes=2**63), "claims a header of 9223372036854775808"),
    "header of 2^64 - 1": (safetensors_file({}, header_bytes=2**64 - 1), "claims a header"),
    "not JSON": (safetensors_file(b"{'a': 1}"), "not JSON"),
    "not text": (safetensors_file(b'{"\xff": 1}'), "not JSON"),
    "not an object": (safetensors_file([]), "not a JSON object"),
    "a number": (safetensors_file(b"12"), "not a JSON object"),
    "two objects": (safetensors_file(b"{}{}"), "not JSON"),
    "deeply nested arrays": (safetensors_file(b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}"), "not JSON"),
    "deeply nested objects": (safetensors_file(b'{"a":' * DEEP + b"1" + b"}" * DEEP), "not JSON"),
    "number of 10,000 digits": (safetensors_file(b'{"a":' + b"1" * 10_000 + b"}"), "not JSON"),
    "NaN": (safetensors_file(b'{"a": NaN}'), "not JSON"),
    "half a character": (safetensors_file(b'{"\\ud800": 1}'), "not JSON"),
    "a flood of arrays": (safetensors_file(b'{"a":[' + b"[]," * 600_000 + b"[]]}"), "more tensors than are read"),
    "duplicate name": (
        safetensors_file(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},' * 2 + b'"b":1}', b"1"),
        "'a' twice|not JSON",
    ),
    "name twice": (safetensors_file(b'{"a":{},"a":{}}'), "names 'a' twice"),
    "field twice": (safetensors_file(b'{"a":{"dtype":"U8","dtype":"U8"}}'), "names 'dtype' twice"),
    "metadata a list": (safetensors_file({"__metadata__": []}), "__metadata__"),
    "metadata of numbers": (safetensors_file({"__metadata__": {"a": 1}}), "__metadata__"),
    "entry a number": (safetensors_file({"a": 1}), "not described by"),
    "entry incomplete": (safetensors_file({"a": {"dtype": "F32", "shape": [1]}}), "not described by"),
    "entry with more": (safetensors_file(entry(more=1), DATA), "not described by"),
    "unknown type": (safetensors_file(entry(dtype="Q4_0"), DATA), "type 'Q4_0', which is not read"),
    "type in small letters": (safetensors_file(entry(dtype="f32"), DATA), "not read"),
    "type a list": (safetensors_file(entry(dtype=["F32"]), DATA), "not read"),
    "type mismatch": (safetensors_file(entry(dtype="F64"), DATA[:8]), "cannot have 8 bytes"),
    "shape mismatch": (safetensors_file(entry(shape=[3]), DATA[:8]), "cannot have 8 bytes"),
    "half a byte": (safetensors_file({"a": safetensors_entry("F4", [3], 0, 1)}, b"1"), "cannot have 1 bytes"),
    "shape a number": (safetensors_file(entry(shape=2), DATA), "no tensor can have"),
    "shape negative": (safetensors_file(entry(shape=[-2]), DATA), "no tensor can have"),
    "shape of two negatives": (safetensors_file(entry(shape=[-1, -2]), DATA), "no tensor can have"),
    "shape of fractions": (safetensors_file(entry(shape=[2.0]), DATA), "no tensor can have"),
    "shape of truths": (safetensors_file(entry(shape=[True, 2]), DATA), "no tensor can have"),
    "shape overflow": (safetensors_file(entry(shape=[2**32, 2**32]), DATA), "no tensor can have"),
    "shape that wraps to 2": (safetensors_file(entry(shape=[2**63 + 1, 2]), DATA), "no tensor can have"),
    "shape of many dimensions": (safetensors_file(entry(shape=[2**62] * 10_000), DATA), "no tensor can have"),
    "bytes overflow": (safetensors_file(entry(shape=[2**62]), DATA), "cannot have 8 bytes"),
    "offsets reversed": (safetensors_file(entry(data_offsets=[8, 0]), DATA), "not a first and a last"),
    "offsets negative": (safetensors_file(entry(data_offsets=[-8, 0]), DATA), "not a first and a last"),
    "offsets of fractions": (safetensors_file(entry(data_offsets=[0.0, 8.0]), DATA), "not a first and a last"),
    "one offset": (safetensors_file(entry(data_offsets=[8]), DATA), "not a first and a last"),
    "offsets a string": (safetensors_file(entry(data_offsets="08"), DATA), "not a first and a last"),
    "offsets of 2^64": (safetensors_file(entry(data_offsets=[2**64, 2**64 + 8]), DATA), "not a first and a last"),
    "offsets out of the file": (safetensors_file(entry(data_offsets=[2**40, 2**40 + 8]), DATA), "past the end"),
    "file shorter than declared": (safetensors_file(TWO, DATA[:-1]), "1 bytes past the end"),
    "no data at all": (safetensors_file(TWO), "past the end"),
    "overlap": (safetensors_file({**TWO, "b": safetensors_entry("F32", [2], 4, 12)}, DATA[:12]), "overlaps"),
    "same place": (safetensors_file({**TWO, "b": safetensors_entry("F32", [2], 0, 8)}, DATA[:8]), "overlaps"),
    "gap": (safetensors_file({"a": safetensors_entry("F32", [2], 8, 16)}, DATA), "gap of 8 bytes"),
    "trailing bytes": (safetensors_file(TWO, DATA + b"1"), "1 bytes after its last tensor"),
    "nothing but trailing bytes": (safetensors_file({}, DATA), "16 bytes after its last tensor"),
    "a name of 64 KiB": (safetensors_file({"n" * 65536: 1}), "not described by"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_quickly_and_cheaply(tmp_path: Path, case: str) -> None:
    data, fault = HOSTILE[case]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(data)
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(ModelFileError, match=fault) as caught:
            SafetensorsFile(path)
        took, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600
    assert took < 2
    assert peak < 2 * len(data) + (4 << 20)


def test_a_header_beyond_the_formats_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:  # sparse: takes no disk
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(100_000_020)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="at most 100000000"):
            SafetensorsFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = lifelike_safetensors()
    path = tmp_path / "cut.safetensors"
    for length in range(1, len(whole)):
        rewrite(path, whole[:length])
        with pytest.raises(ModelFileError):
            SafetensorsFile(path)


# ---- directories


def sharded(directory: Path) -> dict[str, str]:
    """Two shards and their index; returns the index's map."""
    write_safetensors(directory / "one.safetensors", {"a": np.arange(4.0), "b": np.ones((2, 2))})
    write_safetensors(directory / "two.safetensors", {"c": np.zeros(3)})
    homes = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    write_index(directory, homes)
    return homes


def write_index(directory: Path, homes: object) -> None:
    (directory / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 44}, "weight_map": homes}))


def test_shards_read_as_one_checkpoint(tmp_path: Path) -> None:
    sharded(tmp_path)
    checkpoint = open_safetensors(tmp_path)
    assert checkpoint.names == ("a", "b", "c")
    assert dequantize(checkpoint.tensor("a")).tolist() == [0, 1, 2, 3]
    assert checkpoint.tensor("b").shape == (2, 2)
    checkpoint.close()


def test_a_directory_of_one_file_needs_no_index(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "weights.safetensors", {"a": np.ones(1)})
    assert open_safetensors(tmp_path).names == ("a",)
    write_safetensors(tmp_path / "model.safetensors", {"b": np.ones(1)})
    assert open_safetensors(tmp_path).names == ("b",)


def test_several_files_without_index_are_refused(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / INDEX_NAME).unlink()
    with pytest.raises(ModelFileError, match=f"2 .safetensors files but no {INDEX_NAME}"):
        open_safetensors(tmp_path)
    with pytest.raises(ModelFileError, match=r"holds no \.safetensors file"):
        open_safetensors(tmp_path.parent / "..")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"a": "two.safetensors"}, "places tensor 'a' in 'two.safetensors', but 'one.safetensors' holds it"),
        ({"a": None}, "places tensor 'a' in no file"),
        ({"d": "two.safetensors"}, "no tensor 'd'"),
        ({"d": "three.safetensors"}, "no file 'three.safetensors'"),
    ],
)
def test_shards_that_disagree_with_the_index_are_refused(
    tmp_path: Path, changes: dict[str, str | None], fault: str
) -> None:
    homes = {**sharded(tmp_path), **changes}
    write_index(tmp_path, {name: shard for name, shard in homes.items() if shard is not None})
    with pytest.raises(ModelFileError, match=fault):
        ShardedSafetensors(tmp_path)


@pytest.mark.parametrize("homes", [None, [], {}, {"a": 1}, {"a": None}, {"a": "weights.bin"}])
def test_an_index_that_is_none_is_refused(tmp_path: Path, homes: object) -> None:
    write_index(tmp_path, homes)
    with pytest.raises(ModelFileError, match=r"weight_map|not a \.safetensors file"):
        ShardedSafetensors(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../outside", "/etc/outside", "sub/outside", "..\\outside", "C:outside", "nul\0", "x" * 65536, "\ud800", ""],
)
def test_a_shard_outside_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    write_safetensors(tmp_path / "outside.safetensors", {"a": np.ones(1)})
    write_index(directory, {"a": name + ".safetensors"})
    with pytest.raises(ModelFileError) as caught:
        ShardedSafetensors(directory)
    assert len(str(caught.value)) < 600


def test_a_link_may_stay_but_not_leave(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    write_safetensors(tmp_path / "secret", {"a": np.ones(1)})
    write_safetensors(directory / "real.safetensors", {"a": np.ones(1)})
    (directory / "inside.safetensors").symlink_to("real.safetensors")
    (directory / "outside.safetensors").symlink_to("../secret")
    (directory / "broken.safetensors").symlink_to("nowhere")
    (directory / "circle.safetensors").symlink_to("circle.safetensors")
    assert confined(directory, "inside.safetensors").name == "real.safetensors"
    with pytest.raises(ModelFileError, match="leaves the directory"):
        confined(directory, "outside.safetensors")
    for name in ("broken.safetensors", "circle.safetensors"):
        with pytest.raises(ModelFileError, match="no file"):
            confined(directory, name)


def test_the_hub_caches_own_links_are_followed(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123abcd"
    blobs = tmp_path / "models--org--name" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    write_safetensors(blobs / "feed", {"a": np.ones(1)})
    write_safetensors(tmp_path / "secret", {"a": np.ones(1)})
    (snapshot / "model.safetensors").symlink_to("../../blobs/feed")
    assert open_safetensors(snapshot).names == ("a",)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../../secret")
    with pytest.raises(ModelFileError, match="leaves the directory"):
        open_safetensors(snapshot)


def test_a_real_file_is_read_as_the_reference_reads_it() -> None:
    path = model_path(MINILM) / "model.safetensors"
    file = SafetensorsFile(path)
    with safetensors.safe_open(path, "numpy") as reference:
        assert set(file.names) == set(reference.keys())
        for name in file.names[:10]:
            assert file.tensor(name).data.tobytes() == reference.get_tensor(name).tobytes()
