"""Adapters read as the bytes of their files, with nothing done to their numbers on the host: the device lays them out.

    file -> pieces of memory that a GPU reads by itself, each hashed and looked through as it comes -> a slot

Steps go on meanwhile and need the interpreter: what is done here is few and large. Where in a file the matrices lie is found
once for all files that are laid out alike. DoRAs, tables, experts, GGUF files and mixes are read the long way.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b, sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from penstock.errors import ModelFileError
from penstock.runtime.core.request import mix_parts
from penstock.runtime.execution.adapters.pinned import PIECE_BYTES, PinnedPieces
from penstock.runtime.execution.adapters.prepare import FileLayout, LinearPlace, PreparedAdapter, placed, places_of
from penstock.runtime.execution.load.adapters import MAX_CONFIG_BYTES, PERSON, Adapter
from penstock.runtime.execution.load.located import LocatedAdapter, locate_adapter
from penstock.runtime.formats.mapping import open_regular
from penstock.runtime.formats.safetensors import confined
from penstock.runtime.layers.adapted.linear import LoraLinear
from penstock.runtime.models.adapters import CONFIG_NAME, WEIGHTS_NAME
from penstock.runtime.models.sharding import ModelShard
from penstock.runtime.models.spec import ModelSpec

MAX_LAYOUTS = 256
THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))
INFINITIES = {
    torch.float32: (np.int32, np.uint32, 0x7F800000, 0xFF800000),
    torch.float16: (np.int16, np.uint16, 0x7C00, 0xFC00),
    torch.bfloat16: (np.int16, np.uint16, 0x7F80, 0xFF80),
}
"""Of numbers taken for integers with and without a sign: those from here on are not finite, positive and negative ones."""


class FileChangedError(Exception):
    """A file is not what it was a moment ago."""


class DirectReader:
    """From any thread."""

    def __init__(
        self, linears: Mapping[str, LoraLinear], most_rank: int, device: torch.device, pieces: PinnedPieces
    ) -> None:
        self._linears = linears
        self._most_rank = most_rank
        self._device = device
        self._pieces = pieces
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="adapter")
        self._layouts: dict[tuple[bytes, bytes, int], FileLayout | None] = {}
        """By configuration, header and size of a file."""

    def read(self, path: str, spec: ModelSpec, max_rank: int, shard: ModelShard | None) -> PreparedAdapter | None:
        """None where an adapter has to be read the long way, or cannot be read: that tells why."""
        folder = Path(path)
        if mix_parts(path) != [(path, 1.0)] or folder.suffix == ".gguf":
            return None
        try:
            with confined(folder, CONFIG_NAME).open("rb") as file:
                config = file.read(MAX_CONFIG_BYTES + 1)
            descriptor, size = open_regular(confined(folder, WEIGHTS_NAME))
        except (ModelFileError, OSError):
            return None
        try:
            header = _header(descriptor, size)
            key = sha256(config).digest(), sha256(header).digest(), size
            if key not in self._layouts:
                if len(self._layouts) >= MAX_LAYOUTS:
                    self._layouts.clear()
                found = locate_adapter(folder, len(header), spec, max_rank, shard)
                self._layouts[key] = None if found is None else self._layout(found)
            layout = self._layouts[key]
            return None if layout is None else self._copied(path, descriptor, size, header, config, layout)
        except (FileChangedError, ModelFileError, OSError):
            return None
        finally:
            os.close(descriptor)

    def _layout(self, found: LocatedAdapter) -> FileLayout:
        placements = placed(found.adapter, self._linears, self._most_rank)
        moves, scales = [], []
        for one in placements:
            for tensor, move in _moves(one):
                moves.append(move)
                scales.append(1.0 if tensor is None else found.located.scale_of(tensor))
        places = places_of(placements, len(self._linears))
        return FileLayout(
            found.located.kind,
            found.adapter.rank,
            found.adapter.base,
            places.pin_memory() if self._device.type == "cuda" else places,
            torch.tensor(moves).to(self._device),
            torch.tensor(scales).to(self._device),
        )

    def _copied(
        self, path: str, descriptor: int, size: int, header: bytes, config: bytes, layout: FileLayout
    ) -> PreparedAdapter | None:
        held = self._pieces.take(size)
        copy = partial(_copy, descriptor, size, len(header), layout.kind)
        digests = list(self._pool.map(copy, held.pieces, range(0, size, PIECE_BYTES)))
        if None in digests or held.pieces[0][: len(header)].numpy().tobytes() != header:
            return None
        joined = sha256(config).digest() + b"".join(digest for digest in digests if digest is not None)
        digest = blake2b(joined, digest_size=16, person=PERSON).hexdigest()
        adapter = Adapter(digest, path, layout.base)
        return PreparedAdapter(adapter, layout.rank, held, layout.places, layout=layout)


def _header(descriptor: int, size: int) -> bytes:
    """All before a file's numbers, where that fits in a piece."""
    begin = os.pread(descriptor, 8, 0)
    length = 8 + int.from_bytes(begin, "little")
    header = os.pread(descriptor, min(length, PIECE_BYTES), 0)
    if len(header) < length or length > size:
        raise FileChangedError
    return header


def _copy(descriptor: int, size: int, first: int, kind: torch.dtype, piece: Tensor, begin: int) -> bytes | None:
    """What a piece of the file hashes to; None if some of its numbers are not finite. Numbers begin at byte `first`."""
    numbers = piece.numpy()[: min(PIECE_BYTES, size - begin)]
    if os.preadv(descriptor, [numbers.data], begin) != len(numbers):
        raise FileChangedError
    signed, unsigned, least, least_negative = INFINITIES[kind]
    own = numbers[max(0, first - begin) :]
    if len(own) and (own.view(signed).max() >= least or own.view(unsigned).max() >= least_negative):
        return None
    return sha256(numbers.data).digest()


def _moves(one: LinearPlace) -> list[tuple[Tensor | None, list[int]]]:
    """As `lay_matrices` has them, of A and of B, and what each is made of."""
    found: list[tuple[Tensor | None, list[int]]] = []
    at_a, at_b = one.at, one.at_b
    for part, size in zip(one.parts, one.sizes, strict=True):
        for tensor, at, shape in (
            (None if part is None else part.right, at_a, (one.rank, one.columns)),
            (None if part is None else part.left, at_b, (size, one.rank)),
        ):
            layout = (0,) * 5 if tensor is None else (tensor.storage_offset(), *tensor.stride(), *tensor.shape)
            found.append((tensor, [*layout, at, *shape]))
        at_a += one.rank * one.columns
        at_b += size * one.rank
    return found
