"""What is made is read back as it was computed with, in every format; and it is made whole or not at all."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.errors import ConfigError, ModelFileError
from penstock.runtime.files import ModelFiles
from penstock.tools.evaluate.activations import rounded
from penstock.tools.quantize.observe import ObservedProjection, observed
from penstock.tools.quantize.scaling import smooth
from penstock.tools.quantize.schemes import SCHEMES, quantization_config
from penstock.tools.quantize.walk import LayerWalk
from tests.models.ours import Ours
from tests.models.tiny import SMALL, Variant, llama
from tests.quantize.making import job, make, read, save

pytestmark = pytest.mark.torch
SIZES = SMALL | {"vocab_size": 257, "intermediate_size": 128, "num_hidden_layers": 2, "eos_token_id": 256}
CLOSE = {4: 0.2, 8: 0.05, 16: 0.01}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(Variant("Llama", SIZES), tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("name", SCHEMES)
def test_a_reader_finds_the_numbers_that_were_computed_with(plain: Path, tmp_path: Path, name: str) -> None:
    made = make(plain, tmp_path / "made", name)
    found = read(made)
    original = job(plain, tmp_path / "other", name).original
    assert set(found) == set(made.made)
    for parameter, values in found.items():
        torch.testing.assert_close(values, made.made[parameter], rtol=1e-5, atol=1e-6, msg=f"{name}: {parameter}")
    down = original.layer(0).get_parameter("layers.0.mlp.down.weight")
    off = (made.made["layers.0.mlp.down.weight"] - down).norm() / down.norm()
    if made.method in ("round", "gptq"):
        bits = 4 if "4" in name or name == "gptq" else 16 if "bf16" in name else 8
        assert off < CLOSE[bits]


@pytest.mark.parametrize("name", ["int4", "gptq", "q4_0"])
@pytest.mark.parametrize("family", ["Qwen2", "Qwen3", "Mistral", "Olmo2", "Mixtral"])
def test_other_architectures_too(family: str, name: str, tmp_path: Path) -> None:
    more = {"num_local_experts": 2, "num_experts_per_tok": 1} if family == "Mixtral" else {}
    source = save(Variant(family, SIZES | more), tmp_path / "source")
    made = make(source, tmp_path / "made", name)
    for parameter, values in read(made).items():
        torch.testing.assert_close(values, made.made[parameter], rtol=1e-5, atol=1e-6)


def test_gptq_and_awq_err_less_behind_a_matrix_than_rounding(plain: Path, tmp_path: Path) -> None:
    errors = {}
    for method in ("round", "gptq", "awq"):
        made = job(plain, tmp_path / method, "int4", method)  # type: ignore[arg-type]
        made.tokens = torch.randint(257, (32, 24), generator=torch.Generator().manual_seed(3))
        made.run(lambda stage, done, total: None)
        walked = made.original.layer(0)
        errors[method] = _states_error(made, walked)
    assert errors["gptq"] < errors["round"]
    assert errors["awq"] < errors["round"]


def _states_error(made, model) -> float:  # type: ignore[no-untyped-def]
    """Of the hidden states behind the first layer, on text that was not calibrated with."""
    from penstock.tools.quantize.walk import LayerWalk

    tokens = torch.randint(257, (16, 24), generator=torch.Generator().manual_seed(9))
    exact, rounded = LayerWalk(made.original, tokens), LayerWalk(made.original, tokens)
    exact.begin()
    rounded.begin()
    exact.run(model)
    for name, parameter in model.layers[0].named_parameters():
        parameter.data.copy_(made.made[f"layers.0.{name}"])
    rounded.run(model)
    return float((rounded.states - exact.states).norm())


def test_a_run_that_was_stopped_goes_on_and_makes_the_same(plain: Path, tmp_path: Path) -> None:
    whole = make(plain, tmp_path / "whole", "int4")
    stopped = job(plain, tmp_path / "parts", "int4")

    def stop(stage: str, done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.run(stop)
    assert not (tmp_path / "parts").exists()
    seen: list[int] = []
    again = job(plain, tmp_path / "parts", "int4")
    again.run(lambda stage, done, total: seen.append(done))
    again.target.finish(None, {}, "")
    assert seen[0] == 1
    first, second = ((folder / "model.safetensors").read_bytes() for folder in (tmp_path / "whole", tmp_path / "parts"))
    assert first == second
    assert whole.errors == again.errors


def test_a_damaged_model_gives_one_error_and_leaves_nothing(plain: Path, tmp_path: Path) -> None:
    source = save(Variant("Llama", SIZES), tmp_path / "source")
    path = source / "model.safetensors"
    data = bytearray(path.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    begin = 8 + int.from_bytes(data[:8], "little")
    start, _ = header["model.layers.1.mlp.down_proj.weight"]["data_offsets"]
    data[begin + start : begin + start + 4] = b"\x00\x00\xc0\x7f"  # not a number
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="down_proj"):
        make(source, tmp_path / "made", "int4")
    assert not list(tmp_path.glob("made*"))
    path.write_bytes(data[:-100])
    with pytest.raises(ModelFileError, match="end"):
        make(source, tmp_path / "made", "q8_0")
    assert not list(tmp_path.glob("made*"))


def test_a_folder_that_is_there_is_not_written_over(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="there already"):
        make(plain, tmp_path / "made", "q8_0")


def test_words_and_shape_survive_the_way_to_gguf_and_back(plain: Path, tmp_path: Path) -> None:
    there = make(plain, tmp_path / "gguf", "gguf-bf16")
    files = ModelFiles("", there.target.model_path)
    back = make(there.target.model_path, tmp_path / "back", "bf16")
    first, last = ModelFiles("", plain), ModelFiles("", back.target.model_path)
    single = float(torch.tensor(first.spec.norm.eps))  # GGUF's numbers are of 32 bits
    assert files.spec == last.spec == replace(first.spec, norm=replace(first.spec.norm, eps=single))
    text = "It's 3 o'clock; naïve <end> été"
    ids = first.tokenizer.encode(text, special=True)
    assert files.tokenizer.encode(text, special=True) == ids == last.tokenizer.encode(text, special=True)
    assert first.tokenizer.eos_ids == files.tokenizer.eos_ids == last.tokenizer.eos_ids


def test_groups_that_do_not_fit_are_refused_by_size(tmp_path: Path) -> None:
    spec = ModelFiles("", save(llama(vocab_size=257), tmp_path / "odd")).spec
    assert SCHEMES["int4"].in_groups(spec, None).encoding.group == 32  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="choose one of 32"):
        SCHEMES["int4"].in_groups(spec, 64)
    with pytest.raises(ConfigError, match="group"):
        SCHEMES["q4_0"].in_groups(spec, 32)


def test_scales_of_a_cache_reach_the_largest_key_and_value_and_hinder_nobody(plain: Path, tmp_path: Path) -> None:
    made = job(plain, tmp_path / "made", "w8a8")
    made.kv_scales = True
    made.run(lambda stage, done, total: None)
    made.target.finish(quantization_config(made.scheme, made.method, ["lm_head"]), {}, "")
    files = ModelFiles("", tmp_path / "made")
    scales = [float(_numbers(files, f"model.layers.0.self_attn.{part}_scale")) for part in "kv"]
    layer = made.original.layer(0)
    walk = LayerWalk(made.original, made.tokens)  # type: ignore[arg-type]
    walk.begin()
    with observed(layer.layers[0], products=False) as seen:
        walk.run(layer, keep=False)
    watched = seen["attention.qkv"]
    assert isinstance(watched, ObservedProjection)
    assert scales[0] == pytest.approx(float(watched.most[64:96].max()) / 448, rel=1e-5)
    assert scales[1] == pytest.approx(float(watched.most[96:].max()) / 448, rel=1e-5)
    assert len(Ours(tmp_path / "made", 64).greedy([1, 2, 3], 2, 4)[0]) == 7


def test_smoothing_changes_no_product_and_makes_8_bits_err_less(plain: Path, tmp_path: Path) -> None:
    made = job(plain, tmp_path / "made", "w8a8")
    model = made.original.layer(0)
    layer = model.layers[0]
    width = layer.mlp.down.weight.shape[1]
    with torch.no_grad():  # some inputs are far larger than others, as those of real models are
        layer.mlp.gate_up.weight[width : width + 2] *= 40.0
        layer.attention.qkv.weight[-3:] *= 40.0
    walk = LayerWalk(made.original, made.tokens)  # type: ignore[arg-type]
    walk.begin()
    with observed(layer, products=True) as seen:
        walk.run(model, keep=False)

    def error(rows: torch.Tensor, weight: torch.Tensor) -> float:
        return float((rounded(rows, "int8") @ rounded(weight, "int8").t() - rows @ weight.t()).norm())

    matrices = {"mlp.down": layer.mlp.down, "attention.out": layer.attention.out}
    before = {path: (seen[path].inputs.sample, matrix.weight.clone()) for path, matrix in matrices.items()}
    smooth(layer, seen)
    for path, (rows, weight) in before.items():
        inputs, matrix = seen[path].inputs.sample, matrices[path].weight
        assert torch.allclose(inputs @ matrix.t(), rows @ weight.t(), rtol=1e-3, atol=1e-4)
        assert error(inputs, matrix) < 0.8 * error(rows, weight), path


def _numbers(files: ModelFiles, name: str) -> float:
    return float(np.frombuffer(files.checkpoint.tensor(name).data.tobytes(), np.float32)[0])
