"""Adapters through the whole engine, offline."""

from pathlib import Path

import pytest
import torch

from penstock import LLM, SamplingParams
from penstock.assembly.engine import LoadedModel
from penstock.config import configure
from penstock.errors import RequestError
from penstock.runtime.execution.device import open_device
from tests.adapters.making import make_adapter
from tests.models.ours import Ours
from tests.models.tiny import DECODERS

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and adapters of different ranks and kinds."""
    folder = tmp_path_factory.mktemp("adapters")
    variant = DECODERS["llama"]
    variant.save(folder / "base")
    for number in range(8):
        settings = {"target_modules": ALL if number % 2 else ["q_proj", "lm_head"], "r": 2 + number}
        make_adapter(variant, folder / f"a{number}", seed=number, use_dora=number == 3, **settings)
    return folder


def opened(folder: Path, **settings: object) -> LLM:
    adapters = tuple(f"a{number}={folder / f'a{number}'}" for number in range(8))
    model = Ours(folder / "base", 128).module
    loaded = LoadedModel(model, open_device("cpu"), None)
    return LLM.over(loaded, configure(max_context=128, max_sequences=16, adapters=adapters, **settings))


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, 96, (9 + number,), generator=generator).tolist() for number in range(count)]


def test_a_mixed_batch_gives_the_tokens_of_each_alone(folder: Path) -> None:
    asked = prompts(10)
    names = ["", *(f"a{number}" for number in range(8)), ""]
    with opened(folder) as llm:
        together = [one.choices[0].token_ids for one in llm.generate(asked, GREEDY, adapter=names)]
    for prompt, name, tokens in zip(asked, names, together):
        with opened(folder) as llm:
            assert llm.generate([prompt], GREEDY, adapter=name)[0].choices[0].token_ids == tokens
    assert len({tuple(tokens) for tokens in together}) > 5


def test_greedy_tokens_are_those_of_peft(folder: Path) -> None:
    theirs = make_adapter(DECODERS["llama"], folder / "again", seed=1, target_modules=ALL, r=3)
    (prompt,) = prompts(1)
    with opened(folder) as llm:
        ours = llm.generate([prompt], GREEDY, adapter="a1")[0].choices[0].token_ids
    scores = theirs(input_ids=torch.tensor([prompt + list(ours)])).logits[0]
    assert list(ours) == scores.argmax(-1)[len(prompt) - 1 : -1].tolist()


def test_more_adapters_than_slots_all_get_their_turn(folder: Path) -> None:
    asked = prompts(24)
    names = [f"a{number * 5 % 8}" for number in range(24)]
    with opened(folder, max_adapters=2) as llm:
        few = [one.choices[0].token_ids for one in llm.generate(asked, GREEDY, adapter=names)]
        gate = llm.engine.adapters
        assert gate is not None
        assert gate.counts.num_evicted >= 6
        llm.engine.check()
    with opened(folder) as llm:
        many = [one.choices[0].token_ids for one in llm.generate(asked, GREEDY, adapter=names)]
    assert few == many


def test_a_prefix_is_not_shared_between_adapters(folder: Path) -> None:
    prompt = prompts(1)[0] * 5
    with opened(folder) as llm:
        first = [llm.generate([prompt], GREEDY, adapter=name)[0].choices[0].token_ids for name in ("a1", "a3", "")]
        again = [llm.generate([prompt], GREEDY, adapter=name)[0].choices[0].token_ids for name in ("a1", "a3", "")]
    assert first == again
    assert len({tuple(tokens) for tokens in first}) == 3


def test_an_unknown_name_is_refused_with_those_there_are(folder: Path) -> None:
    with opened(folder) as llm, pytest.raises(RequestError, match="a0, a1"):
        llm.generate([[1, 2]], adapter="nobody")
