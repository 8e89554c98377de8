"""Loading fills every parameter exactly, or refuses the file by the name of the tensor."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.errors import ModelFileError
from penstock.runtime.execution.load import parameters as load
from penstock.runtime.execution.load.parameters import dummy_model, load_model
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Recipes, Tensor
from tests.runtime.driving import tiny_spec
from tests.runtime.files import checkpoint

CPU = torch.device("cpu")
SPEC = tiny_spec()


def arrays(spec: ModelSpec = SPEC, dtype: str = "float32") -> dict[str, np.ndarray]:
    """A checkpoint whose tensors are named as our parameters are."""
    model = dummy_model(spec, CPU, torch.float32)
    return {name.replace(".", "__"): value.numpy().astype(dtype) for name, value in model.named_parameters()}


def recipes(tensors: dict[str, np.ndarray]) -> Recipes:
    names = [key.replace("__", ".") for key in tensors]
    return {name: Tensor(name) for name in names}


@pytest.mark.parametrize("stored", ["float32", "float16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_parameter_is_filled_with_its_numbers(
    stored: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "SLICE_VALUES", 100)
    tensors = arrays(dtype=stored)
    model = load_model(SPEC, recipes(tensors), checkpoint(**tensors), CPU, dtype)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if "norm" in name else dtype)
        expected = torch.from_numpy(tensors[name.replace(".", "__")]).to(parameter.dtype)
        torch.testing.assert_close(parameter.data, expected, rtol=0, atol=0)


def test_numbers_of_the_right_type_are_used_where_they_lie() -> None:
    tensors = arrays()
    file = checkpoint(**tensors)
    model = load_model(SPEC, recipes(tensors), file, CPU, torch.float32)
    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == file.tensor(name).data.ctypes.data


def test_progress_counts_every_number_once() -> None:
    reported: list[tuple[int, int]] = []
    tensors = arrays()
    load_model(SPEC, recipes(tensors), checkpoint(**tensors), CPU, torch.float32, lambda *state: reported.append(state))
    assert reported[-1] == (SPEC.num_parameters, SPEC.num_parameters)
    assert [done for done, _ in reported] == sorted({done for done, _ in reported})


def _with(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, np.ndarray]], None]:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = change(tensors[name].copy())

    return spoil


def _put(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array.flat[-1] = value
        return array

    return change


QKV = "layers__1__attention__qkv__weight"
SPOILT = {
    "nan": _with(QKV, _put(np.nan)),
    "infinity": _with(QKV, _put(np.inf)),
    "opposite infinities": _with(QKV, lambda array: _put(np.inf)(-_put(np.inf)(array))),
    "all zeros": _with(QKV, np.zeros_like),
    "other shape": _with(QKV, lambda array: array[:-1]),
    "transposed": _with(QKV, lambda array: array.T),
    "missing": lambda tensors: tensors.pop(QKV),
    "nan in a norm": _with("layers__1__mlp_norm__weight", _put(np.nan)),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_damaged_tensor_is_refused_by_its_name(
    spoil: Callable[[dict[str, np.ndarray]], None], dtype: torch.dtype
) -> None:
    tensors = arrays()
    plan = recipes(tensors)
    spoil(tensors)
    with pytest.raises(ModelFileError, match=r"layers\.1\.(attention\.qkv|mlp_norm)\.weight"):
        load_model(SPEC, plan, checkpoint(**tensors), CPU, dtype)


def test_numbers_too_large_for_the_type_are_refused() -> None:
    tensors = arrays()
    plan = recipes(tensors)
    _with(QKV, _put(1e6))(tensors)
    with pytest.raises(ModelFileError, match=r"layers\.1\.attention\.qkv\.weight.*too large for float16"):
        load_model(SPEC, plan, checkpoint(**tensors), CPU, torch.float16)


def test_a_bias_of_zeros_is_no_damage() -> None:
    spec = tiny_spec(layers=tuple(replace(layer, mlp=replace(layer.mlp, bias=True)) for layer in SPEC.layers))
    tensors = arrays(spec)
    tensors["layers__0__mlp__down__bias"][:] = 0
    load_model(spec, recipes(tensors), checkpoint(**tensors), CPU, torch.float32)


def test_tensors_without_a_place_are_named() -> None:
    tensors = arrays()
    plan = recipes(tensors)
    spare = {"layers__0__rotary_emb__inv_freq": np.ones(4, dtype=np.float32), "rope_freqs__weight": np.ones(4, "f4")}
    load_model(SPEC, plan, checkpoint(**tensors, **spare), CPU, torch.float32)
    with pytest.raises(ModelFileError, match=r"layers\.2\.attention\.qkv\.weight"):
        load_model(
            SPEC, plan, checkpoint(**tensors, layers__2__attention__qkv__weight=tensors[QKV]), CPU, torch.float32
        )


def test_an_output_matrix_beside_a_tied_embedding_is_left_alone() -> None:
    spec = tiny_spec(tied_embedding=True)
    tensors = arrays(spec)
    file = checkpoint(**tensors, lm_head__weight=tensors["embedding__weight"])
    load_model(spec, recipes(tensors), file, CPU, torch.float32)


@pytest.mark.parametrize(
    "change", [lambda plan: plan.pop("norm.weight"), lambda plan: plan.update(x=Tensor("norm.weight"))]
)
def test_recipes_that_do_not_fit_the_spec_are_refused(change: Callable[[Recipes], object]) -> None:
    tensors = arrays()
    plan = recipes(tensors)
    change(plan)
    with pytest.raises(ModelFileError, match=r"norm\.weight|recipe for x"):
        load_model(SPEC, plan, checkpoint(**tensors), CPU, torch.float32)


def test_dummy_numbers_are_the_same_on_every_run_and_differ_by_seed() -> None:
    first, again, other = (dummy_model(SPEC, CPU, torch.bfloat16, seed) for seed in (1, 1, 2))
    for name, values in first.named_parameters():
        assert torch.equal(values, again.get_parameter(name))
        assert "norm" in name or not torch.equal(values, other.get_parameter(name))
        assert bool(torch.isfinite(values).all())
