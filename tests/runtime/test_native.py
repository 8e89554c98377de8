"""The native decoder computes what the torch decoder computes from the same numbers, however texts are cut and batched."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch

from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.execution.native.decoder import NativeDecoder, NativeWeights, native_obstacle
from penstock.runtime.execution.native.load import gate_order
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec, Norm, Rope
from penstock.runtime.ops.cpu.library import KERNELS, open_library
from penstock.runtime.ops.layout import BatchLayout
from penstock.runtime.ops.quantized.int8 import round_int8
from penstock.runtime.ops.quantized.packed import GROUP, Grouped, pack, quantize
from penstock.tools.evaluate.activations import round_inputs
from tests.machine import NUM_THREADS

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS, MAX_CONTEXT = 16, 64, 256
LENGTHS = (37, 5, 70)
LONG = (150, 3, 170)
"""Rows enough for every thread to take some of them through whole layers by itself."""


def plain_spec(**changes: object) -> ModelSpec:
    attention = GQA(6, 2, 32, Rope(32), 32**-0.5)
    spec = ModelSpec("llama", 96, 203, (Layer(attention, GatedMLP(160, "silu")),) * 2, Norm(), MAX_CONTEXT)
    return dataclasses.replace(spec, **changes)


def spec_with(norms: str = "pre", mlp: GatedMLP | None = None, **changes: object) -> ModelSpec:
    layers = tuple(
        Layer(dataclasses.replace(layer.attention, **changes), mlp or layer.mlp, norms)  # type: ignore[arg-type]
        for layer in plain_spec().layers
    )
    return plain_spec(layers=layers)


SPECS = {
    "plain": plain_spec(),
    "tied": plain_spec(tied_embedding=True, embedding_scale=3.0, logit_softcap=5.0),
    "biased": spec_with(qkv_bias=True, out_bias=True, mlp=GatedMLP(160, "silu", bias=True)),
    "normed heads": spec_with(qk_norm="head"),
    "sandwich": spec_with("sandwich", GatedMLP(160, "gelu_tanh"), window=9, logit_softcap=4.0),
    "part rotated": spec_with(rope=Rope(16)),
    "two rotations": plain_spec(
        layers=tuple(
            Layer(GQA(6, 2, 32, Rope(32, theta), 0.2, window=window), GatedMLP(160, "silu"))
            for theta, window in ((100.0, 7), (1e6, None))
        )
    ),
}


def twins(
    spec: ModelSpec,
    kernels: str = "",
    is_invariant: bool = True,
    num_threads: int = NUM_THREADS,
    rounds: bool = False,
    silent: str = "",
) -> tuple[Decoder, NativeDecoder]:
    """A torch decoder and a native one of the very same numbers; with `rounds` both have layers of W8A8."""
    library = open_library(num_threads, kernels)
    if library is None:
        pytest.skip(f"the native library is not built or this machine lacks its {kernels} kernels")
    model = dummy_model(spec, CPU, torch.float32, seed=4)
    assert isinstance(model, Decoder)
    matrices, vectors = {}, {}
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if silent and name.endswith(silent):
            parameter.data.zero_()
        if parameter.ndim == 2:
            grouped = by_row(parameter) if rounds and name.startswith("layers.") else quantize(parameter)
            parameter.data = grouped.dequantize()
            matrices[name] = pack(grouped.take(gate_order(spec)) if name.endswith("gate_up.weight") else grouped)
        else:
            parameter.data = parameter + torch.rand(parameter.shape, generator=generator) * 0.3
            vectors[name] = parameter.data
            if name.endswith("gate_up.bias"):
                vectors[name] = parameter.data[gate_order(spec)]
    if rounds:
        round_inputs(model, "int8")
    return model, NativeDecoder(spec, NativeWeights(matrices, vectors), library, is_invariant)


def by_row(weight: torch.Tensor) -> Grouped:
    values, scales = round_int8(weight)
    groups = values.view(len(weight), -1, GROUP)
    return Grouped(groups, scales.half()[:, None].expand(-1, groups.shape[1]), None, rounds=True)


def texts(spec: ModelSpec, num_tokens: Sequence[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    return [torch.randint(0, spec.vocab_size, (length,), generator=generator) for length in num_tokens]


@torch.inference_mode()
def states(model: Decoder | NativeDecoder, steps: Sequence[tuple[int, ...]], seed: int = 0) -> list[torch.Tensor]:
    """Final states of all texts, computed in steps of so many tokens of each."""
    spec = model.spec
    cache = KVCache(spec, NUM_BLOCKS, BLOCK_SIZE, model.cache_dtype, CPU)
    rotations = Rotations(spec, MAX_CONTEXT, CPU)
    tables = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed))[:60].view(3, 20).int()
    every = texts(spec, [sum(counts) for counts in zip(*steps)])
    done, results = [0] * len(every), [[] for _ in every]
    for counts in steps:
        chosen = [index for index, count in enumerate(counts) if count]
        lengths = [counts[index] for index in chosen]
        contexts = [done[index] + counts[index] for index in chosen]
        places = [torch.arange(end - length, end) for length, end in zip(lengths, contexts)]
        slots = [tables[i].long()[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for i, at in zip(chosen, places)]
        starts = torch.tensor((0, *lengths)).cumsum(0).int()
        ends = torch.tensor(contexts).int()
        positions = torch.cat(places)
        layout = BatchLayout(positions, torch.cat(slots), tables[chosen], starts, ends, lengths, contexts)
        ids = torch.cat([every[index][at] for index, at in zip(chosen, places)])
        hidden = model(ids, Step(layout, rotations.at(positions), cache.layers))
        for index, part in zip(chosen, hidden.split(lengths)):
            results[index].append(part.clone())
            done[index] += len(part)
    return [torch.cat(parts) for parts in results]


def distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("name", SPECS)
def test_equals_the_torch_decoder(name: str) -> None:
    spec = SPECS[name]
    assert native_obstacle(spec) is None
    model, native = twins(spec)
    for mine, theirs in zip(states(native, [LENGTHS]), states(model, [LENGTHS])):
        assert distance(mine, theirs) < 0.015
        assert distance(native.scores(mine), model.logits(theirs)) < 0.015


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_kernel_computes_the_model(kernels: str) -> None:
    model, native = twins(SPECS["plain"], kernels)
    for mine, theirs in zip(states(native, [LENGTHS]), states(model, [LENGTHS])):
        assert distance(mine, theirs) < 0.015


def test_bf16_products_of_large_steps_stay_near() -> None:
    model, native = twins(SPECS["plain"], is_invariant=False)
    for mine, theirs in zip(states(native, [LENGTHS]), states(model, [LENGTHS])):
        assert distance(mine, theirs) < 0.02


@pytest.mark.parametrize("name", SPECS)
def test_many_rows_go_through_a_layer_in_panels(name: str) -> None:
    model, native = twins(SPECS[name], is_invariant=False)
    steps = [LONG, (1, 1, 1)]
    for mine, theirs in zip(states(native, steps), states(model, steps)):
        assert distance(mine, theirs) < 0.02


@pytest.mark.parametrize("steps", [[LONG], [(150, 3, 100), (0, 0, 70)]])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 5])
def test_bits_of_many_rows_do_not_depend_on_who_takes_them(num_threads: int, steps: list[tuple[int, ...]]) -> None:
    """With five threads every chunk's keys come from several panels."""
    _, one = twins(SPECS["two rotations"], is_invariant=False, num_threads=1)
    _, many = twins(SPECS["two rotations"], is_invariant=False, num_threads=num_threads)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(states(many, steps, seed=9), states(one, [LONG])))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    "steps",
    [
        [(37, 0, 0), (0, 5, 0), (0, 0, 70)],
        [(16, 1, 17), (21, 4, 53)],
        [(1, 0, 1)] * 20 + [(17, 5, 50)],
    ],
)
def test_bits_do_not_depend_on_chunks_or_company(kernels: str, steps: list[tuple[int, ...]]) -> None:
    _, native = twins(SPECS["two rotations"], kernels)
    together, apart = states(native, [LENGTHS]), states(native, steps, seed=9)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(apart, together))


@pytest.mark.parametrize(("silent", "share"), [("attention.out.weight", 0.1), ("mlp.down.weight", 0.8)])
@pytest.mark.parametrize("steps", [[LENGTHS], [LONG, (1, 1, 1)]])
@pytest.mark.parametrize("kernels", KERNELS)
def test_layers_of_w8a8_round_as_torch_does(
    kernels: str, steps: list[tuple[int, ...]], silent: str, share: float
) -> None:
    """Nearer to torch's layers with rounded inputs than to the same layers unrounded. Where only the feed-forward
    sublayer speaks both round the same numbers; a bf16 cache makes some of an attention's fall the other way."""
    spec = spec_with("sandwich", GatedMLP(160, "gelu_tanh", bias=True), qkv_bias=True)
    spec = dataclasses.replace(spec, layers=spec.layers[:1])
    rounded, native = twins(spec, kernels, rounds=True, silent=silent)
    floats = [states(rounded, steps)]
    for parts in (rounded.layers[0].attention, rounded.layers[0].mlp):
        for name, module in list(parts.named_children()):
            setattr(parts, name, getattr(module, "linear", module))
    floats.append(states(rounded, steps))
    for mine, theirs, unrounded in zip(states(native, steps), *floats):
        assert distance(mine, theirs) < share * distance(mine, unrounded)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("steps", [[(16, 1, 17), (134, 2, 153)], [(1, 0, 1)] * 20 + [(130, 3, 150)]])
def test_bits_of_w8a8_depend_on_nobody_even_in_panels(kernels: str, steps: list[tuple[int, ...]]) -> None:
    _, native = twins(SPECS["two rotations"], kernels, is_invariant=False, rounds=True)
    together, apart = states(native, [LONG]), states(native, steps, seed=9)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(apart, together))


def test_what_cannot_be_computed_is_named() -> None:
    assert native_obstacle(plain_spec(norm=Norm("layer"))) == "its norms"
    assert native_obstacle(spec_with(sinks=True)) == "its attention"
    assert native_obstacle(spec_with(head_dim=24)) == "heads of 24 numbers"
    assert native_obstacle(plain_spec(hidden_size=80)) == "sizes that are not whole groups"


@pytest.mark.parametrize("count", [16, 96, 203, 400])
def test_a_smaller_vocabulary_has_the_likeliest_of_its_tokens(count: int) -> None:
    _, model = twins(plain_spec())
    hidden = torch.randn((9, 96), generator=torch.Generator().manual_seed(8))
    expected = model.scores(hidden)[:, :count].argmax(-1)
    assert model.with_vocabulary(count).likeliest(hidden).equal(expected)
    assert model.likeliest(hidden).equal(model.scores(hidden).argmax(-1)), "the model itself keeps all of its own"
