"""Safetensors files, one or many: a length, a JSON header that names every tensor, then the tensors' bytes.

    8-byte header length | header | data: tensors side by side, no gap, no overlap, to the last byte of the file

The file is not trusted. The header's size and structure are bounded before it is parsed, and the tensors must tile the
data exactly before anyone may read one. A sharded checkpoint may only name files of its own directory.
"""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from penstock.errors import ModelFileError
from penstock.runtime.formats.checkpoint import MAX_COUNT, Checkpoint, RawTensor, TensorTable, quoted
from penstock.runtime.formats.mapping import Bytes, map_file
from penstock.runtime.formats.quants import BLOCKS

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_HEADER_MARKS = 1_000_000
"""Braces, brackets, colons and commas in a header. A tensor takes about twelve, so this is some 80,000 tensors; and since
every JSON value needs a mark, it bounds what parsing can allocate however the header is written."""
MAX_DIMS = 8

_DTYPES = {
    *("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"),
    *("F64", "F32", "F16", "BF16", "C64"),
    *("F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4"),
}

_DAMAGED = "the file is damaged or cut short; fetch it again"


def open_safetensors(path: str | Path) -> Checkpoint:
    """The checkpoint in a .safetensors file or in a directory of them."""
    path = Path(path)
    if not os.path.isdir(path):
        return SafetensorsFile(path)
    if (path / SINGLE_NAME).exists():
        return SafetensorsFile(confined(path, SINGLE_NAME))
    if (path / INDEX_NAME).exists():
        return ShardedSafetensors(path)
    files = sorted(file.name for file in path.glob("*.safetensors"))
    if len(files) == 1:
        return SafetensorsFile(confined(path, files[0]))
    if files:
        raise ModelFileError(f"{path} holds {len(files)} .safetensors files but no {INDEX_NAME} to join them; fetch it")
    raise ModelFileError(f"{path} holds no .safetensors file; fetch the weights, or name a .gguf file")


class SafetensorsFile(TensorTable):
    """One open file."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        super().__init__(path, _read_tensors(path, map_file(path)))


class ShardedSafetensors(TensorTable):
    """A directory whose index says which file holds which tensor. The files must agree with it, tensor by tensor."""

    def __init__(self, directory: str | Path) -> None:
        directory = Path(directory)
        index = confined(directory, INDEX_NAME)
        homes = _read_index(index)
        shards = {shard: SafetensorsFile(confined(directory, shard)) for shard in dict.fromkeys(homes.values())}
        for shard, file in shards.items():
            for name in file.names:
                if homes.get(name) != shard:
                    says = f"in {quoted(homes[name])}" if name in homes else "in no file"
                    raise ModelFileError(
                        f"{index} places tensor {quoted(name)} {says}, but {quoted(shard)} holds it: "
                        "the files are of different downloads; fetch them again"
                    )
        super().__init__(directory, {name: shards[shard].tensor(name) for name, shard in homes.items()})


def confined(directory: Path, name: str) -> Path:
    """The real path of a file that must lie in `directory`, where `name` comes from a file we do not trust.

    A link may lead elsewhere only as the Hugging Face cache lays links out: snapshots/REVISION/name -> blobs/HASH.
    """
    if name in ("", ".", "..") or len(name) > 255 or any(mark in name for mark in "/\\\0:"):
        raise ModelFileError(f"{directory}: {quoted(name)} is not the plain name of a file in this directory")
    try:
        home = directory.resolve(strict=True)
        real = (home / name).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise ModelFileError(f"{directory} has no file {quoted(name)}; fetch it again") from None
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if real.parent not in (home, blobs):
        raise ModelFileError(f"{directory}: {quoted(name)} is a link that leaves the directory; copy the file there")
    if not real.is_file():
        raise ModelFileError(f"{directory}: {quoted(name)} is no plain file; copy the file there")
    return real


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    data = map_file(path)
    if data.size > MAX_HEADER_BYTES:
        raise ModelFileError(f"{path} is {data.size} bytes long; an index has at most {MAX_HEADER_BYTES}")
    homes = _parse_object(path, data).get("weight_map")
    if not isinstance(homes, dict) or not homes:
        raise ModelFileError(f"{path} has no 'weight_map' of tensors to files; {_DAMAGED}")
    for name, shard in homes.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors"):
            raise ModelFileError(f"{path} places tensor {quoted(name)} in {quoted(shard)}, not a .safetensors file")
    return cast(dict[str, str], homes)


def _read_tensors(path: Path, data: Bytes) -> dict[str, RawTensor]:
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    if data.size < 8 or not 2 <= header_bytes <= data.size - 8:
        raise ModelFileError(f"{path} has {data.size} bytes and claims a header of {header_bytes}; {_DAMAGED}")
    if header_bytes > MAX_HEADER_BYTES:
        raise ModelFileError(f"{path} has a header of {header_bytes} bytes; at most {MAX_HEADER_BYTES} are read")
    header = _parse_object(path, data[8 : 8 + header_bytes])
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ModelFileError(f"{path} has a '__metadata__' that is not names of strings; {_DAMAGED}")
    body = data[8 + header_bytes :]
    tensors: dict[str, RawTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        dtype, shape, start, end = _check_entry(path, name, entry)
        if end > body.size:
            missing = end - body.size
            raise ModelFileError(f"{path}: tensor {quoted(name)} ends {missing} bytes past the end; {_DAMAGED}")
        tensors[name] = RawTensor(name, dtype, shape, body[start:end])
        spans.append((start, end, name))
    _check_tiling(path, spans, int(body.size))
    return tensors


def _check_entry(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """Number format, shape, first byte and byte after the last."""
    where = f"{path}: tensor {quoted(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(f"{where} is not described by dtype, shape and data_offsets alone; {_DAMAGED}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ModelFileError(f"{where} has numbers of type {quoted(dtype)}, which is not read")
    if not _are_counts(shape) or len(shape) > MAX_DIMS or math.prod(shape) > MAX_COUNT:
        raise ModelFileError(f"{where} has shape {quoted(shape)}, which no tensor can have; {_DAMAGED}")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelFileError(f"{where} has offsets {quoted(offsets)}, not a first and a last; {_DAMAGED}")
    start, end = offsets
    block = BLOCKS[dtype]
    if math.prod(shape) * block.num_bytes != (end - start) * block.num_values:
        raise ModelFileError(f"{where} of type {dtype} and shape {shape} cannot have {end - start} bytes; {_DAMAGED}")
    return dtype, tuple(shape), start, end


def _check_tiling(path: Path, spans: Iterable[tuple[int, int, str]], num_bytes: int) -> None:
    reached = 0
    for start, end, name in sorted(spans):
        if start != reached:
            fault = "overlaps the one before it" if start < reached else f"leaves a gap of {start - reached} bytes"
            raise ModelFileError(f"{path}: tensor {quoted(name)} {fault}; {_DAMAGED}")
        reached = end
    if reached != num_bytes:
        raise ModelFileError(f"{path} has {num_bytes - reached} bytes after its last tensor; {_DAMAGED}")


def _parse_object(path: Path, data: Bytes) -> dict[str, object]:
    """A JSON object with bounded structure, no name twice and no numbers beyond JSON's."""
    text = data.tobytes()
    if sum(text.count(mark) for mark in (b"{", b"[", b":", b",")) > MAX_HEADER_MARKS:
        raise ModelFileError(f"{path} describes more tensors than are read (some 80,000); split it into files")
    try:
        parsed = json.loads(str(text, "utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except _RepeatedName as error:
        raise ModelFileError(f"{path} names {quoted(str(error))} twice; {_DAMAGED}") from None
    except (ValueError, RecursionError):
        raise ModelFileError(f"{path} has a header that is not JSON; {_DAMAGED}") from None
    if not isinstance(parsed, dict):
        raise ModelFileError(f"{path} has a header that is not a JSON object; {_DAMAGED}")
    return parsed


class _RepeatedName(Exception):
    pass


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique: dict[str, object] = {}
    for name, value in pairs:
        if name in unique:
            raise _RepeatedName(name)
        name.encode()  # half a character, such as "\ud800", is a ValueError
        unique[name] = value
    return unique


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= MAX_COUNT for value in values)
