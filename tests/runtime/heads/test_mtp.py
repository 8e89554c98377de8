"""DeepSeek's layer for one token further: its guesses, bit by bit, are those of `transformers` over the whole text."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from penstock.runtime.execution.heads.mtp import (
    BLOCK_SIZE,
    BLOCKS_EACH,
    NUM_GENERATIONS,
    LayerPairs,
    MtpHeads,
    load_mtp,
)
from penstock.runtime.formats.open import open_checkpoint
from penstock.runtime.layers.decoder import Decoder
from tests.models.ours import Ours, read_model
from tests.models.tiny import DECODERS, Variant
from tests.runtime.heads.test_heads import KEY, Fed

NUM_LAYERS, CONTEXT = 3, 256


class Published:
    """A checkpoint with such a layer, and `transformers`' modules of it."""

    def __init__(self, folder: Path, name: str) -> None:
        variant = DECODERS[name]
        longer = Variant(variant.family, variant.settings | {"num_hidden_layers": NUM_LAYERS + 1})
        self.theirs = longer.save(folder)
        torch.manual_seed(6)
        size, here = self.theirs.config.hidden_size, f"model.layers.{NUM_LAYERS}."
        self.norms = {name: 1.0 + 0.2 * torch.randn(size) for name in ("enorm", "hnorm", "shared_head.norm")}
        self.join = torch.randn(size, 2 * size) * (2 * size) ** -0.5
        own = {f"{here}{name}.weight": norm for name, norm in self.norms.items()} | {f"{here}eh_proj.weight": self.join}
        save_file(load_file(folder / "model.safetensors") | own, folder / "model.safetensors", {"format": "pt"})
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": NUM_LAYERS}))
        self.ours = Ours(folder, CONTEXT).module
        assert isinstance(self.ours, Decoder)
        checkpoint = open_checkpoint(folder)
        recipes = read_model(folder, checkpoint).mtp
        self.layer = load_mtp(self.ours, recipes, checkpoint)

    def heads(self, fed: Fed) -> MtpHeads:
        return MtpHeads(self.layer, fed.model.spec, fed.target, fed.store)

    def predicted(self, tokens: list[int], states: Tensor) -> Tensor:
        """Of pairs (token p, state of p - 1) from p = 1 on."""
        eps = self.theirs.config.rms_norm_eps

        def norm(x: Tensor, name: str) -> Tensor:
            return nn.functional.rms_norm(x, x.shape[-1:], self.norms[name], eps)

        embedded = self.theirs.get_input_embeddings()(torch.tensor(tokens[1:]))
        joined = torch.cat((norm(embedded, "enorm"), norm(states, "hnorm")), -1) @ self.join.T
        alone: PreTrainedModel = self.theirs.model
        alone.layers, alone.norm = nn.ModuleList([alone.layers[-1]]), nn.Identity()
        places = torch.arange(1, len(tokens))[None]
        found: Tensor = alone(inputs_embeds=joined[None], position_ids=places, use_cache=False).last_hidden_state[0]
        return found

    def token(self, state: Tensor) -> int:
        eps = self.theirs.config.rms_norm_eps
        normed = nn.functional.rms_norm(state, state.shape[-1:], self.norms["shared_head.norm"], eps)
        return int(self.theirs.lm_head(normed).argmax())


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3-yarn"])
@torch.inference_mode()
def test_guesses_are_those_of_the_published_layer(name: str, tmp_path: Path) -> None:
    model = Published(tmp_path, name)
    text = torch.randint(0, model.ours.spec.vocab_size, (40,)).tolist()
    fed = Fed(text, model.ours)
    heads = model.heads(fed)
    states = Fed(text, model.ours).example().states
    for count, wrong in ((6, ()), (1, (3, 4)), (4, (1,)), (1, ()), (9, (2, 2, 2)), (1, ())):
        fed.feed(count, wrong)
        known = text[: fed.num_fed + 1]
        first, second = heads.guess(KEY, 1, known, 2)
        predicted = model.predicted(known, states[: fed.num_fed])
        assert first == model.token(predicted[-1])
        further = model.predicted([*known, first], torch.cat((states[: fed.num_fed], predicted[-1:])))
        assert second == model.token(further[-1])


def test_a_generation_keeps_its_order_when_it_forgets() -> None:
    pairs = LayerPairs(5, torch.arange(8))
    pairs.end = 5 + 7 * BLOCK_SIZE
    pairs.forget_half()
    assert pairs.begin == 5 + 3 * BLOCK_SIZE
    assert pairs.blocks.tolist() == [3, 4, 5, 6, 7, 0, 1, 2]


def test_more_generations_than_there_is_room_for_take_the_oldest_ones(tmp_path: Path) -> None:
    model = Published(tmp_path, "deepseek-v3")
    fed = Fed(range(20), model.ours)
    fed.feed(9)
    heads = model.heads(fed)
    first = heads.guess((0, 0), 1, list(range(10)), 2)
    for number in range(1, 2 * NUM_GENERATIONS):
        assert heads.guess((number, 0), 1, list(range(10)), 2) == first
    held = [*heads._free, *(pairs.blocks for pairs in heads._caches.values())]
    assert sorted(torch.cat(held).tolist()) == list(range(NUM_GENERATIONS * BLOCKS_EACH))


def test_a_checkpoint_without_the_layer_says_so(tmp_path: Path) -> None:
    DECODERS["deepseek-v3"].save(tmp_path)
    assert read_model(tmp_path, open_checkpoint(tmp_path)).mtp == {}
