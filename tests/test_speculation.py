"""Speculation on the real default model, by its native steps: the same tokens in fewer steps."""

from collections.abc import Iterator

import pytest

from penstock import LLM, SamplingParams
from penstock.config import configure
from penstock.errors import ConfigError
from tests.real import DEFAULT, RANDOM_LLAMA, model_path

PASSAGE = (
    "The penstock at Hollow Creek was built in 1931. It carries water from the upper reservoir, at an elevation of 612 "
    "metres, down to the powerhouse at 318 metres. The pipe is 1,240 metres long and 2.4 metres wide."
)
QUOTE = f"<|im_start|>user\nText:\n{PASSAGE}\n\nRepeat the text above word for word.<|im_end|>\n<|im_start|>assistant\n"
STORY = "<|im_start|>user\nTell me a story about a dog.<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [QUOTE, STORY]

PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=16),
    "sampled": SamplingParams(temperature=0.8, top_p=0.9, seed=11, max_tokens=16, n=2),
    "penalties": SamplingParams(temperature=0.7, top_k=40, min_p=0.02, repetition_penalty=1.2, seed=5, max_tokens=16),
    "logprobs": SamplingParams(temperature=0.0, logprobs=2, presence_penalty=0.3, max_tokens=16),
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(model_path(DEFAULT)), max_context=1024) as model:
        yield model


@pytest.mark.parametrize("name", PARAMS)
def test_answers_are_the_same_with_and_without(llm: LLM, name: str) -> None:
    """With seeds too: a draft is accepted where it is what would have been drawn."""
    params = PARAMS[name]
    plain = llm.generate(PROMPTS, params)
    guessing = LLM.over(llm.loaded, configure(llm.config, speculate="ngram", draft_tokens=4))
    found = guessing.generate(PROMPTS, params)
    for ours, theirs in zip(found, plain, strict=True):
        assert [choice.token_ids for choice in ours.choices] == [choice.token_ids for choice in theirs.choices]
    assert guessing.engine.proposals is not None
    assert guessing.engine.proposals.num_accepted > 0


def test_a_quotation_takes_half_the_steps(llm: LLM) -> None:
    guessing = LLM.over(llm.loaded, configure(llm.config, speculate="ngram", draft_tokens=6))
    (answer,) = guessing.generate([QUOTE], SamplingParams(temperature=0.0, max_tokens=16))
    assert guessing.engine.num_steps < len(answer.choices[0].token_ids) / 2


def test_a_draft_model_guesses_and_nothing_else_changes(llm: LLM) -> None:
    """The model as its own draft is nearly always right."""
    params = SamplingParams(temperature=0.0, max_tokens=16)
    settings = {"speculate": "model", "draft_model": str(model_path(DEFAULT)), "draft_tokens": 3}
    guessing = LLM.over(llm.loaded, configure(llm.config, **settings))
    (found,), (plain,) = guessing.generate([STORY], params), llm.generate([STORY], params)
    assert found.choices[0].token_ids == plain.choices[0].token_ids
    proposals = guessing.engine.proposals
    assert proposals is not None
    assert proposals.num_accepted >= 0.9 * proposals.num_checked > 0


def test_a_draft_model_of_another_vocabulary_is_refused(llm: LLM) -> None:
    config = configure(llm.config, speculate="model", draft_model=str(model_path(RANDOM_LLAMA)))
    with pytest.raises(ConfigError, match="another vocabulary"):
        LLM.over(llm.loaded, config)
