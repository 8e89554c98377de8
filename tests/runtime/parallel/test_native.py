"""Packed weights over ranks: a native step of several parts gives the numbers of one, and a lost rank ends it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.errors import ModelFileError, RankLostError
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.execution.native.cache import NativeCache
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.execution.native.load import load_native
from penstock.runtime.execution.parallel.native import NativePart, load_native_part
from penstock.runtime.execution.parallel.world import World
from penstock.runtime.formats.checkpoint import Checkpoint, RawTensor, TensorTable
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.models.sharding import shard_model
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Recipes, Tensor
from penstock.runtime.ops.layout import BatchLayout
from penstock.runtime.ops.quantized.packed import quantize
from tests.runtime.parallel.threads import CPU, in_ranks
from tests.runtime.test_native import SPECS

LAYOUTS = [Ranks(2), Ranks(pipeline=2), Ranks(2, 2)]
TOKENS = torch.randint(0, 203, (41,), generator=torch.Generator().manual_seed(5))
BLOCK_SIZE = 16


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def written(spec: ModelSpec) -> tuple[Recipes, Checkpoint]:
    """A model of random numbers as a file holds it: matrices in Q8_0, vectors in floats."""
    model = dummy_model(spec, CPU, torch.float32, seed=4)
    found: dict[str, RawTensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            numbers = (parameter.detach() + 0.1).numpy()
            found[name] = RawTensor(name, "F32", parameter.shape, np.frombuffer(numbers.tobytes(), np.uint8))
            continue
        grouped = quantize(parameter.detach())
        blocks = torch.cat((grouped.scales.unsqueeze(-1).view(torch.uint8), grouped.values.view(torch.uint8)), dim=-1)
        found[name] = RawTensor(name, "Q8_0", tuple(parameter.shape), blocks.flatten().numpy())
    return {name: Tensor(name) for name in found}, TensorTable(Path("tensors"), found)


@torch.inference_mode()
def logits_of(model: NativeDecoder | NativePart, *, makes_scores: bool = True) -> torch.Tensor | None:
    """At every position of a text in two chunks."""
    count = len(TOKENS)
    num_blocks = -(-count // BLOCK_SIZE)
    cache = NativeCache(model.spec, num_blocks, BLOCK_SIZE, torch.bfloat16)
    found = []
    for begin, end in ((0, 23), (23, count)):
        positions = torch.arange(begin, end)
        tables = torch.arange(num_blocks).int()[None]
        starts, ends = torch.tensor([0, end - begin]).int(), torch.tensor([end]).int()
        layout = BatchLayout(positions, positions.clone(), tables, starts, ends, [end - begin], [end])
        angles = Rotations(model.spec, count, CPU).at(positions)
        hidden = model(TOKENS[begin:end], Step(layout, angles, cache.layers))
        if makes_scores:
            found.append(model.scores(hidden).clone())
    return torch.cat(found) if makes_scores else None


@pytest.mark.parametrize("name", SPECS)
def test_parts_together_give_what_the_whole_gives(name: str) -> None:
    recipes, checkpoint = written(SPECS[name])
    whole = load_native(SPECS[name], recipes, checkpoint, 1)
    if whole is None:
        pytest.skip("the native library is not built")
    expected = logits_of(whole)
    assert expected is not None

    def run(world: World) -> torch.Tensor | None:
        shard = shard_model(SPECS[name], world.place.ranks, world.place.rank)
        part = load_native_part(shard, recipes, checkpoint, 1)
        assert part is not None
        return logits_of(part.join(world), makes_scores=world.place.is_last_stage)

    for ranks in LAYOUTS:
        found = [each for each in in_ranks(ranks, run) if each is not None]
        for each in found:
            assert torch.equal(each, found[0]), "ranks must agree to the bit"
            torch.testing.assert_close(each, expected, atol=0.02 * float(expected.abs().max()), rtol=0.0)


def test_a_rank_that_is_lost_ends_the_step() -> None:
    spec = SPECS["plain"]
    recipes, checkpoint = written(spec)
    part = load_native_part(shard_model(spec, Ranks(2), 0), recipes, checkpoint, 2)
    if part is None:
        pytest.skip("the native library is not built")

    class Gone:
        index, count = 0, 2

        def all_reduce(self, x: torch.Tensor) -> None:
            raise RankLostError("it is gone")

    world = World.__new__(World)
    world.place, world.tensor = Ranks(2).place(0), Gone()  # type: ignore[assignment]
    with pytest.raises(RankLostError, match="it is gone"):
        logits_of(part.join(world))


def test_columns_are_cut_between_groups_only() -> None:
    matrix = quantize(torch.randn(4, 128))
    held = matrix.take_columns(range(32, 96))
    assert torch.equal(held.dequantize(), matrix.dequantize()[:, 32:96])
    with pytest.raises(ModelFileError, match="between groups of 32"):
        matrix.take_columns(range(16, 96))
