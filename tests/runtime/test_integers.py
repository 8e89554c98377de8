"""A checkpoint of AWQ, GPTQ or compressed-tensors is the model that the same numbers make in floats."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from penstock import LLM, SamplingParams
from penstock.assembly.engine import load
from penstock.config import configure
from penstock.errors import ModelFileError
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.load.audit import TensorAudit
from penstock.runtime.execution.load.grouping import group_recipe
from penstock.runtime.execution.load.parameters import load_model
from penstock.runtime.execution.load.recipe import open_recipe
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.execution.native.load import load_native
from penstock.runtime.files import ModelFiles, open_files
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.models.weights import Gptq
from penstock.runtime.ops.layout import BatchLayout
from tests.runtime.files import checkpoint
from tests.runtime.quantized_files import KINDS, VOCABULARY, Kind, random_matrix, tensors, write_pair

CPU = torch.device("cpu")
IN_ORDER = {name: kind for name, kind in KINDS.items() if not kind.act_order}
PROMPTS = [[3, 77, 12, 9, 101], list(range(5, 60))]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def generated(path: Path, **settings: Any) -> list[list[int]]:
    config = configure(model=str(path), max_context=128, **settings)
    with LLM.over(replace(load(config), files=None), config) as llm:  # no words, only numbers
        sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        return [list(answer.choices[0].token_ids) for answer in llm.generate(PROMPTS, sampling)]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_tokens_are_those_of_the_same_numbers_in_floats(kind: Kind, tmp_path: Path) -> None:
    quantized, floats = write_pair(kind, tmp_path)
    assert generated(quantized, dtype="float32") == generated(floats, dtype="float32")


def native(files: ModelFiles) -> NativeDecoder | None:
    return load_native(files.spec, files.model.recipes, files.checkpoint, 2)


@torch.inference_mode()
def scores(model: Decoder | NativeDecoder, ids: list[int]) -> torch.Tensor:
    """Logits at every position."""
    positions, length = torch.arange(len(ids)), len(ids)
    tables, ends = torch.arange(8).int()[None], torch.tensor([length]).int()
    layout = BatchLayout(
        positions, positions.clone(), tables, torch.tensor([0, length]).int(), ends, [length], [length]
    )
    cache = KVCache(model.spec, 8, 16, model.cache_dtype, CPU)
    step = Step(layout, Rotations(model.spec, 128, CPU).at(positions), cache.layers)
    return model.scores(model(torch.tensor(ids), step)).float().clone()


@pytest.mark.parametrize("kind", IN_ORDER.values(), ids=IN_ORDER)
def test_packed_weights_say_what_floats_say(kind: Kind, tmp_path: Path) -> None:
    quantized, floats = (open_files(str(path)) for path in write_pair(kind, tmp_path))
    decoder = native(quantized)
    if decoder is None:
        pytest.skip("the native library is not built")
    plain = load_model(floats.spec, floats.model.recipes, floats.checkpoint, CPU, torch.float32)
    assert isinstance(plain, Decoder)
    text = torch.randint(0, VOCABULARY, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    mine, theirs = (scores(model, text) for model in (decoder, plain))
    assert (mine - theirs).norm() < 0.04 * theirs.norm()
    first, second = theirs.topk(2).values.t()
    is_clear = first - second > 2 * (mine - theirs).abs().amax(-1)
    assert is_clear.float().mean() > 0.7
    assert torch.equal(mine.argmax(-1)[is_clear], theirs.argmax(-1)[is_clear])
    matrices = sum(part.nbytes for part in decoder.parameters())
    assert matrices < (quantized.path / "model.safetensors").stat().st_size * 1.25


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("shape", [(48, 256), (32, 384)], ids=str)
def test_numbers_are_exact(kind: Kind, shape: tuple[int, int]) -> None:
    source = np.random.default_rng(7)
    matrix = random_matrix(kind, shape, source, source.permutation(shape[1]))
    file = checkpoint(**tensors(kind, "m", matrix))
    recipe = _recipe(kind, file.names)
    numbers = torch.from_numpy(matrix.numbers())
    read = open_recipe(recipe, file, TensorAudit())
    assert read.shape == shape
    assert torch.equal(
        torch.cat([read.read(start, min(start + 7, shape[0])) for start in range(0, shape[0], 7)]), numbers
    )
    grouped = group_recipe(recipe, file, TensorAudit())
    assert grouped.bits == kind.bits
    if kind.symmetric:
        assert torch.equal(grouped.dequantize(), numbers)
    else:
        zeros = np.abs(matrix.zeros - (0 if kind.bits == 4 else 128)) * matrix.scales.astype(np.float32)
        rounded = torch.from_numpy(zeros[:, matrix.group_of_input]) * 2**-11
        assert ((grouped.dequantize() - numbers).abs() <= rounded + 1e-9).all()


def _recipe(kind: Kind, names: tuple[str, ...]) -> Any:
    from penstock.runtime.models.quantization import replace_floats
    from penstock.runtime.models.weights import Tensor

    return replace_floats({"quantization_config": kind.settings()}, {"m": Tensor("m.weight")}, names)["m"]


def test_older_zeros_that_borrowed_from_their_neighbours_come_back() -> None:
    """One taken from every place of a word at once, as writers of the older format take it from the newer."""
    kind = Kind("gptq", group_size=32, version="gptq_v2")
    source = np.random.default_rng(3)
    matrix = random_matrix(kind, (16, 64), source, np.arange(64))
    matrix.zeros[:] = source.integers(0, 16, matrix.zeros.shape)
    matrix.zeros[:, 0] = 0
    parts = tensors(kind, "m", matrix)
    parts["m.qzeros"] = (parts["m.qzeros"].view(np.uint32) - np.uint32(0x11111111)).view(np.int32)
    source_of = open_recipe(Gptq("m", 32, 4, True, True, False), checkpoint(**parts), TensorAudit())
    assert torch.equal(source_of.read(0, 16), torch.from_numpy(matrix.numbers()))


def test_a_model_that_reorders_inputs_is_left_to_floats_on_a_cpu(tmp_path: Path) -> None:
    assert native(open_files(str(write_pair(KINDS["gptq, act order"], tmp_path)[0]))) is None


def _edit(name: str, change: Callable[[np.ndarray], np.ndarray | None]) -> Callable[[dict[str, np.ndarray]], None]:
    def spoil(state: dict[str, np.ndarray]) -> None:
        made = change(state.pop(name))
        if made is not None:
            state[name] = made

    return spoil


def _nan(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.flat[5] = np.nan
    return values


LAYER = "model.layers.1.mlp.down_proj"
SPOILT = {
    "missing zeros": (_edit(f"{LAYER}.qzeros", lambda values: None), "down_proj.qzeros"),
    "cut scales": (_edit(f"{LAYER}.scales", lambda values: values[:-1].copy()), "down_proj.scales"),
    "nan": (_edit(f"{LAYER}.scales", _nan), "down_proj.qweight"),
    "zeros": (_edit(f"{LAYER}.scales", np.zeros_like), "down_proj.qweight"),
    "a group that is not there": (_edit(f"{LAYER}.g_idx", lambda values: values + 1), "down_proj.g_idx"),
    "words of floats": (_edit(f"{LAYER}.qweight", lambda values: values.astype(np.float32)), "not a matrix of I32"),
    "a bias of numbers": (_edit(f"{LAYER}.bias", lambda values: values + 1), "down_proj.bias.*no place"),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_a_damaged_matrix_is_refused_by_name(
    spoil: Callable[[dict[str, np.ndarray]], None], words: str, dtype: str, tmp_path: Path
) -> None:
    path, _ = write_pair(KINDS["gptq"], tmp_path)
    state = load_file(path / "model.safetensors")
    spoil(state)
    (path / "model.safetensors").unlink()
    save_file(state, path / "model.safetensors")
    with pytest.raises(ModelFileError, match=words):
        LLM(str(path), dtype=dtype)


UNREAD = {
    "bits": ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits is 3; it must be 4 or 8"),
    "group": ({"quant_method": "gptq", "bits": 4, "group_size": 48}, "group_size is 48"),
    "format": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}, "marlin"),
    "dynamic": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"x": {}}}, "dynamic is"),
    "version": ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, "version is 'gemv'"),
    "method": ({"quant_method": "hqq"}, "quant_method is 'hqq'; it must be one of mxfp4, awq, gptq"),
    "no groups": ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "config_groups"),
    "no such matrices": ({"quant_method": "awq", "bits": 4, "group_size": 128}, "no matrix of that kind"),
}


@pytest.mark.parametrize(("settings", "words"), UNREAD.values(), ids=UNREAD)
def test_what_is_not_read_is_refused_by_name(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    _, path = write_pair(KINDS["gptq"], tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    with pytest.raises(ModelFileError, match=words):
        LLM(str(path))
