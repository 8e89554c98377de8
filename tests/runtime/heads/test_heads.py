"""What a head guesses while serving, step by step with what it keeps, is what it foretells in training, all texts at once."""

from collections.abc import Sequence

import pytest
import torch

from penstock.runtime.core.batch import Arrival, Batch, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.heads.eagle import EagleHeads, EagleShape
from penstock.runtime.execution.heads.medusa import MedusaHeads
from penstock.runtime.execution.heads.states import StateStore
from penstock.runtime.execution.heads.target import FloatTarget
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.train.eagle import EagleModule
from penstock.runtime.train.examples import Example, pad
from penstock.runtime.train.medusa import MedusaModule
from tests.runtime.driving import BLOCK_SIZE, tiny_model

VOCABULARY, HIDDEN, DEPTH = 96, 32, 3
SHAPE = EagleShape(HIDDEN, 4, 2, 48)
KEY = (1, 0)
CHOSEN = torch.arange(0, VOCABULARY, 2)
"""The draft vocabulary."""


class Fed:
    """A model's runner that is given a text bit by bit and leaves its states in a store."""

    def __init__(self, text: Sequence[int], model: Decoder | None = None) -> None:
        self.model = model or tiny_model(VOCABULARY, seed=3)
        self.runner = ModelRunner(self.model, RunnerShape(16, BLOCK_SIZE, 2, 16 * BLOCK_SIZE))
        self.store = self.runner.states = StateStore(self.model.spec.hidden_size, torch.device("cpu"))
        self.target = FloatTarget(self.model)
        self.text = tuple(text)
        self.num_fed = self.num_steps = 0

    def feed(self, count: int, wrong: Sequence[int] = ()) -> None:
        """So many tokens, and drafts behind them that do not come true."""
        tokens = (*self.text[self.num_fed : self.num_fed + count], *wrong)
        arrival = None if self.num_fed else Arrival(SamplingParams(temperature=0.0), 0, 1, (), "")
        blocks = () if self.num_fed else tuple(range(16))
        chunk = Chunk(1, self.num_fed, len(tokens), tokens, blocks, True, arrival, len(wrong))
        self.num_steps += 1
        self.runner.launch(Batch(self.num_steps, (chunk,))).result()
        self.num_fed += count

    def example(self) -> Example:
        whole = Fed(self.text, self.model)
        whole.feed(len(self.text))
        states = whole.store.at(1, 0, len(self.text))
        assert states is not None
        return Example(torch.tensor(self.text), states.clone(), 1)


def served_eagle(module: EagleModule, fed: Fed) -> EagleHeads:
    return EagleHeads(module.layer, fed.target, fed.target.chooser(CHOSEN), CHOSEN.tolist(), fed.store)


def likeliest(states: torch.Tensor, fed: Fed) -> int:
    return int(CHOSEN[(states @ fed.target.output_rows(CHOSEN).T).argmax()])


@pytest.mark.parametrize("seed", range(3))
def test_an_eagle_head_serves_what_it_was_trained_to(seed: int) -> None:
    torch.manual_seed(seed)
    text = torch.randint(0, VOCABULARY, (40,)).tolist()
    fed = Fed(text)
    module = EagleModule(SHAPE, fed.target)
    heads = served_eagle(module, fed)
    predicted = module.predict(pad([fed.example()]), 1)[0][0]
    for count, wrong in ((6, ()), (1, (3, 4)), (4, (1,)), (1, ()), (9, (2, 2, 2)), (1, ())):
        fed.feed(count, wrong)
        # The last token of the text so far is drawn but not computed: its pair is the newest.
        known = text[: fed.num_fed + 1]
        first, *_ = heads.guess(KEY, 1, known, DEPTH)
        assert first == likeliest(predicted[fed.num_fed - 1], fed)


def test_deeper_guesses_of_an_eagle_head_go_on_from_its_own() -> None:
    torch.manual_seed(5)
    text = torch.randint(0, VOCABULARY, (24,)).tolist()
    fed = Fed(text)
    module = EagleModule(SHAPE, fed.target)
    heads = served_eagle(module, fed)
    fed.feed(9)
    guesses = heads.guess(KEY, 1, text[:10], DEPTH)
    # As if the text went on as guessed: what training foretells there, guess by guess.
    imagined = Fed((*text[:10], *guesses))
    predicted = module.predict(pad([imagined.example()]), DEPTH)
    assert guesses == [likeliest(predicted[place][0, 8 + place], fed) for place in range(DEPTH)]


def test_medusa_heads_serve_what_they_were_trained_to() -> None:
    torch.manual_seed(2)
    text = torch.randint(0, VOCABULARY, (24,)).tolist()
    fed = Fed(text)
    module = MedusaModule(HIDDEN, DEPTH)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    blocks = [[fed.target.hold(linear.weight, linear.bias)] for linear in module.blocks]
    heads = MedusaHeads(blocks, [fed.target.chooser(CHOSEN)], CHOSEN.tolist(), fed.store)
    predicted = module.predict(pad([fed.example()]), DEPTH)
    for count, wrong in ((7, (1, 1)), (1, ()), (3, (5,))):
        fed.feed(count, wrong)
        guesses = heads.guess(KEY, 1, text[: fed.num_fed + 1], DEPTH)
        assert guesses == [likeliest(predicted[place][0, fed.num_fed - 1 + place], fed) for place in range(DEPTH)]


def test_nothing_is_guessed_where_no_states_are() -> None:
    fed = Fed(range(20))
    heads = served_eagle(EagleModule(SHAPE, fed.target), fed)
    assert heads.guess(KEY, 1, [1, 2, 3], DEPTH) == []
    fed.feed(5)
    assert heads.guess(KEY, 1, list(range(9)), DEPTH) == [], "states of the last tokens are missing"
    assert heads.guess(KEY, 0, list(range(6)), DEPTH) == [], "another row"
    assert len(heads.guess(KEY, 1, list(range(6)), DEPTH)) == DEPTH
