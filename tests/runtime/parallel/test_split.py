"""A model split over ranks gives the numbers of the unsplit one: every architecture, every way to cut it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from penstock.errors import ConfigError, ModelFileError
from penstock.runtime.execution.load.parameters import load_model
from penstock.runtime.execution.parallel.world import World
from penstock.runtime.files import ModelFiles
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.models.spec import GQA, MoE
from tests.models.tiny import DECODERS
from tests.runtime.driving import all_logits
from tests.runtime.parallel.threads import CPU, in_ranks, load_part

DENSE, MIXED = (Ranks(2, 2),), (Ranks(expert=2), Ranks(tensor=4, expert=2), Ranks(tensor=2, expert=2, pipeline=2))
THOROUGH = ("llama", "gemma3", "gpt2", "olmo2-multi-head")
MORE = (Ranks(2), Ranks(pipeline=2), Ranks(pipeline=3), Ranks(4))
TOKENS = torch.randint(0, 96, (37,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def whole_model(folder: Path) -> Decoder:
    files = ModelFiles(str(folder), folder)
    model = load_model(files.spec, files.model.recipes, files.checkpoint, CPU, torch.float32)
    assert isinstance(model, Decoder)
    return model


def logits_of(folder: Path, ranks: Ranks, *, shares_memory: bool = True) -> list[torch.Tensor]:
    def run(world: World) -> torch.Tensor | None:
        model = load_part(folder, world)
        if not world.place.is_last_stage:
            model.scores = lambda hidden: hidden  # it has no matrix for them
        found = all_logits(model, TOKENS)
        return found if world.place.is_last_stage else None

    return [each for each in in_ranks(ranks, run, shares_memory=shares_memory) if each is not None]


@pytest.mark.parametrize("name", DECODERS)
def test_every_architecture(name: str, tmp_path: Path) -> None:
    DECODERS[name].save(tmp_path)
    model = whole_model(tmp_path)
    if not all(isinstance(layer.attention, GQA) for layer in model.spec.layers):
        with pytest.raises((ConfigError, ModelFileError)):
            Ranks(2).check(model.spec)
        return
    expected = all_logits(model, TOKENS)
    layouts = MIXED if any(isinstance(layer.mlp, MoE) for layer in model.spec.layers) else DENSE
    for ranks in (*layouts, *(MORE if name in THOROUGH else ())):
        if ranks.pipeline > model.spec.num_layers:
            continue
        found = logits_of(tmp_path, ranks)
        for each in found:
            torch.testing.assert_close(each, expected, atol=1e-4, rtol=1e-4)
            assert torch.equal(each, found[0]), "ranks must agree to the bit"


def test_ranks_of_several_machines_exchange_by_gloo(tmp_path: Path) -> None:
    DECODERS["llama"].save(tmp_path)
    expected = all_logits(whole_model(tmp_path), TOKENS)
    for each in logits_of(tmp_path, Ranks(2, 2), shares_memory=False):
        torch.testing.assert_close(each, expected, atol=1e-4, rtol=1e-4)
