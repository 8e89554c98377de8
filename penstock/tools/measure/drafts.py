"""What each drafter would gain on a text, with steps of this machine and model as they are measured here."""

from collections.abc import Mapping, Sequence

from penstock.errors import ConfigError
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.draft.drafter import Drafter
from penstock.runtime.draft.drafters.ngram import NgramDrafter
from penstock.runtime.draft.drafters.suffix import SuffixDrafter
from penstock.runtime.draft.trial import DraftTrial, try_drafts
from penstock.runtime.engine.engine import Engine

WIDTHS = (0, 1, 2, 3, 5, 7, 11, 15)
"""Drafts a step whose cost is measured."""
TOKENS = 8
LEAST_TOKENS = 64


def measure_drafts(
    engine: Engine, token_ids: Sequence[int], others: Mapping[str, Drafter] | None = None
) -> dict[str, DraftTrial]:
    """By drafter. The first quarter of the text stands for its prompt. The engine speculates, by a model if one is tried;
    others are tried beside its own."""
    if len(token_ids) < LEAST_TOKENS:
        raise ConfigError(f"the text has {len(token_ids)} tokens; give one of {LEAST_TOKENS} or more")
    proposals = engine.proposer.proposals
    if proposals is None:
        raise ConfigError("the engine does not speculate; choose --speculate auto")
    take_wrong_drafts(engine, token_ids)
    step_s = proposals.speculator.cost
    drafters: dict[str, Sequence[Drafter]] = {"ngram": [NgramDrafter()], "suffix": [NgramDrafter(), SuffixDrafter()]}
    drafters |= {drafter.name: [drafter] for drafter in proposals.speculator.drafters if drafter.name == "model"}
    drafters |= {name: [drafter] for name, drafter in (others or {}).items()}
    num_prompt = len(token_ids) // 4
    return {name: try_drafts(each, token_ids, num_prompt, step_s) for name, each in drafters.items()}


def take_wrong_drafts(engine: Engine, token_ids: Sequence[int]) -> None:
    """Steps that check so many drafts, all of them wrong: what they take, which is what is learnt, does not depend on that."""
    prompt, wrong = tuple(token_ids[:LEAST_TOKENS]), tuple(token_ids[::-1])
    for number, width in enumerate(WIDTHS):
        params = SamplingParams(temperature=0.0, max_tokens=TOKENS * (1 + width), ignore_eos=True)
        engine.submit(
            Request(request_id=2**40 + number, prompt=prompt, params=params, prediction=wrong, speculate=width)
        )
        for _ in range(TOKENS):
            engine.step()
        engine.cancel(2**40 + number)
        while engine.has_work:
            engine.step()
