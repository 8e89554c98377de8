"""Architectures with other kinds of cache under the scheduler: the greedy tokens of `transformers`, whatever is done to a step.

Prompts come in chunks, begin alike, are preempted for want of memory, have three choices and run eight at a time; drafts are
checked, right ones and wrong ones.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from penstock.runtime.core.batch import Delta
from penstock.runtime.core.kinds.groups import BlockGroup, CacheGroups
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.drafter import Guess, View
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.layers.decoder import Decoder
from tests.models.ours import Ours
from tests.models.tiny import DECODERS
from tests.runtime.test_engine import serve

NAMES = ("qwen3-next", "granite4", "falcon-h1", "lfm2", "nemotron-h", "deepseek-v2-groups", "deepseek-v3")
BLOCK_SIZE, CONTEXT, NUM_TOKENS, NUM_STATES = 8, 256, 64, 30


def asked() -> list[Request]:
    """Two stems; the seventh wants three choices, the last repeats the first and goes on."""
    generator = torch.Generator().manual_seed(3)
    stems = torch.randint(0, 96, (2, 40), generator=generator).tolist()
    ends = torch.randint(0, 96, (8, 30), generator=generator).tolist()
    prompts = [(*stems[number % 2], *ends[number][: 3 + 4 * number]) for number in range(8)]
    return [
        Request(
            request_id=number,
            prompt=prompt,
            params=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, n=3 if number == 6 else 1),
        )
        for number, prompt in enumerate((*prompts, (*prompts[0], 1, 2, 3)))
    ]


class Guesser:
    """Knows the answers, and is wrong in every third token."""

    name = "guesser"

    def __init__(self, texts: list[tuple[int, ...]]) -> None:
        self.texts = texts

    def seconds(self, length: int) -> float:
        return 0.0

    def finish(self, view: View) -> None:
        """Nothing is kept."""

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        return [self._guess(tuple(view.tokens), most) for view in views]

    def _guess(self, tokens: tuple[int, ...], most: int) -> Guess:
        known = next((text for text in self.texts if text[: len(tokens)] == tokens), ())
        ahead = enumerate(known[len(tokens) : len(tokens) + most], len(tokens))
        return Guess(tuple((token + (place % 3 == 0)) % 96 for place, token in ahead), self.name)


def engine_of(model: Decoder, num_blocks: int, speculator: Speculator | None = None) -> Engine:
    spec = model.spec
    first, *others = [BlockGroup(*group) for group in spec.cache_layout().groups]
    num_states = NUM_STATES if any(group.kind == "state" for group in spec.cache_groups) else 0
    groups = CacheGroups(first, tuple(others), num_states)
    limits = Limits(num_blocks, BLOCK_SIZE, CONTEXT, 24, 8, 100, 10_000, groups=groups)
    shape = RunnerShape(num_blocks, BLOCK_SIZE, 8, CONTEXT, frees=True, num_states=num_states)
    return Engine(Scheduler(limits), ModelRunner(model, shape), lambda: 0.0, speculator=speculator)


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_served_tokens_are_theirs(name: str, tmp_path: Path) -> None:
    theirs = DECODERS[name].save(tmp_path)
    model = Ours(tmp_path, CONTEXT).module
    assert isinstance(model, Decoder)
    engine = engine_of(model, 60)
    answers = serve(engine, asked())
    engine.scheduler.check()
    assert engine.scheduler.num_preemptions > 0
    hits = [delta.prefix.num_tokens for deltas in answers.values() for delta in deltas if delta.prefix]
    assert sum(hits) > 0
    prompts = {request.request_id: request.prompt for request in asked()}
    for (number, _), deltas in answers.items():
        tokens = [token for delta in deltas for token in delta.token_ids]
        assert len(tokens) == NUM_TOKENS
        everything = torch.tensor([[*prompts[number], *tokens]])
        likeliest = theirs(input_ids=everything).logits[0].argmax(-1).tolist()
        assert tokens == likeliest[len(prompts[number]) - 1 : -1]
    check_drafts(model, {key: said(deltas) for key, deltas in answers.items()})


def said(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def check_drafts(model: Decoder, plain: dict[tuple[int, int], list[int]]) -> None:
    """With drafts, three tokens at a time, every answer is the same; a third of what is checked is wrong."""
    prompts = {request.request_id: request.prompt for request in asked()}
    texts = [(*prompts[number], *tokens) for (number, _), tokens in plain.items()]
    engine = engine_of(model, 60, Speculator([Guesser(texts)], length=3))
    answers = serve(engine, asked())
    engine.scheduler.check()
    assert engine.scheduler.num_preemptions > 0
    assert {key: said(deltas) for key, deltas in answers.items()} == plain
    checks = [one for deltas in answers.values() for delta in deltas for one in delta.drafts]
    num_accepted = sum(one.num_accepted for one in checks)
    assert 0 < num_accepted < sum(one.num_checked for one in checks)
