"""A quantized file, loaded natively, says what it says in floats."""

from collections.abc import Iterator

import pytest
import torch

from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.load.parameters import load_model
from penstock.runtime.execution.native import load as native_load
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.files import ModelFiles, open_files
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.ops.cpu.library import Library, open_library
from penstock.runtime.ops.layout import BatchLayout
from tests import real

CPU = torch.device("cpu")
CONTEXT = 256
BLOCKS = CONTEXT // 16


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


def native(files: ModelFiles) -> NativeDecoder:
    decoder = native_load.load_native(files.spec, files.model.recipes, files.checkpoint, 2)
    if decoder is None:
        pytest.skip("the native library is not built")
    return decoder


@torch.inference_mode()
def surprise(model: Decoder | NativeDecoder, ids: list[int]) -> float:
    """Mean negative log probability of each token given those before it."""
    positions = torch.arange(len(ids))
    tables, ends = torch.arange(BLOCKS).int()[None], torch.tensor([len(ids)]).int()
    starts = torch.tensor([0, len(ids)]).int()
    layout = BatchLayout(positions, positions.clone(), tables, starts, ends, [len(ids)], [len(ids)])
    cache = KVCache(model.spec, BLOCKS, 16, model.cache_dtype, CPU)
    angles = Rotations(model.spec, CONTEXT, CPU).at(positions)
    tokens = torch.tensor(ids)
    states = model(tokens, Step(layout, angles, cache.layers))
    scores = torch.log_softmax(model.scores(states[:-1]).float(), dim=-1)
    return -float(scores.gather(1, tokens[1:, None]).mean())


@pytest.mark.parametrize("name", [real.DEFAULT, pytest.param(real.GEMMA, marks=pytest.mark.slow)])
def test_a_real_model_is_no_more_surprised_than_in_floats(name: str) -> None:
    files = open_files(str(real.model_path(name)))
    decoder = native(files)
    model = load_model(files.spec, files.model.recipes, files.checkpoint, CPU, torch.float32)
    assert isinstance(model, Decoder)
    text = real.model_path(real.WIKITEXT).read_text()[:20_000]
    ids = files.tokenizer.encode(text, special=True)[:CONTEXT]
    assert abs(surprise(decoder, ids) - surprise(model, ids)) < 0.005
    assert abs(surprise(decoder, ids[:20]) - surprise(model, ids[:20])) < 0.02


def test_weights_stay_packed() -> None:
    path = real.model_path(real.DEFAULT)
    files = open_files(str(path))
    held = sum(part.nbytes for part in native(files).parameters())
    assert held < 1.05 * path.stat().st_size if path.is_file() else held < 110e6


def test_without_the_library_torch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_load, "open_library", lambda num_threads: None)
    files = open_files(str(real.model_path(real.DEFAULT)))
    assert native_load.load_native(files.spec, files.model.recipes, files.checkpoint, 1) is None


@pytest.mark.parametrize(("uses_tiles", "kernels"), [(True, "amx-emulated"), (False, "avx512")])
def test_tiles_are_left_where_they_would_round_by_the_rows_beside(
    uses_tiles: bool, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(num_threads: int, named: str = "amx-emulated") -> Library | None:
        return open_library(num_threads, named)

    if open_library(1, "avx512") is None:
        pytest.skip("a machine with tiles has these kernels")
    monkeypatch.setattr(native_load, "open_library", opened)
    files = open_files(str(real.model_path(real.DEFAULT)))
    loaded = native_load.load_native(files.spec, files.model.recipes, files.checkpoint, 1, True, uses_tiles=uses_tiles)
    assert loaded is not None
    assert loaded.library.kernels == kernels


def test_files_of_floats_are_left_to_torch() -> None:
    files = open_files(str(real.model_path(real.RANDOM_LLAMA)))
    assert native_load.load_native(files.spec, files.model.recipes, files.checkpoint, 1) is None
