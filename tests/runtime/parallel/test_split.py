"""A model split over ranks gives the numbers of the unsplit one: every architecture, every way to cut it."""

from pathlib import Path

import pytest
import torch

from penstock.files import ModelFiles
from penstock.models.ranks import Ranks
from penstock.models.spec import MoE
from penstock.runtime.load.parameters import load_model
from penstock.runtime.parallel.stage import StagedDecoder
from penstock.runtime.parallel.world import World
from tests.models.tiny import DECODERS
from tests.runtime.driving import all_logits
from tests.runtime.parallel.threads import CPU, in_ranks, load_shard

LAYOUTS = [Ranks(tensor=2), Ranks(pipeline=2), Ranks(tensor=2, pipeline=2), Ranks(expert=2), Ranks(tensor=4, expert=2)]
TOKENS = torch.randint(0, 96, (37,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", DECODERS)
def test_every_architecture(name: str, tmp_path: Path) -> None:
    DECODERS[name].save(tmp_path)
    files = ModelFiles(str(tmp_path), tmp_path)
    whole = load_model(files.spec, files.model.recipes, files.checkpoint, CPU, torch.float32)
    expected = all_logits(whole, TOKENS)
    for ranks in LAYOUTS:
        if ranks.expert > 1 and not any(isinstance(layer.mlp, MoE) for layer in files.spec.layers):
            continue

        def logits(world: World) -> torch.Tensor | None:
            model, _ = load_shard(tmp_path, world)
            found = all_logits(StagedDecoder(model, world) if world.place.ranks.pipeline > 1 else model, TOKENS)
            return found if world.place.is_last_stage else None

        found = [each for each in in_ranks(ranks, logits) if each is not None]
        for each in found:
            torch.testing.assert_close(each, expected, atol=1e-4, rtol=1e-4)
            assert torch.equal(each, found[0]), "ranks must agree to the bit"
