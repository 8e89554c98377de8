"""Speculation on the real default model, by its native steps: the same tokens in fewer steps."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from penstock import LLM, SamplingParams
from penstock.config import configure
from penstock.errors import ConfigError
from penstock.offline.training import head_config, head_shape, trial_drafter
from penstock.runtime.core.request import Request
from penstock.runtime.draft.step_cost import StepCost
from penstock.runtime.draft.trial import try_drafts
from penstock.runtime.execution.heads.target import head_target
from penstock.runtime.train.eagle import EagleModule
from penstock.runtime.train.folder import write_heads
from penstock.runtime.train.medusa import MedusaModule
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
    "penalties": SamplingParams(temperature=0.3, top_k=40, min_p=0.02, repetition_penalty=1.05, seed=5, max_tokens=16),
    "logprobs": SamplingParams(temperature=0.0, logprobs=2, presence_penalty=0.3, max_tokens=16),
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(model_path(DEFAULT)), max_context=1024, speculate="off", invariant=True) as model:
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
    assert guessing.engine.proposer.proposals is not None
    assert guessing.engine.proposer.proposals.num_accepted > 0


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
    proposals = guessing.engine.proposer.proposals
    assert proposals is not None
    assert proposals.num_accepted >= 0.9 * proposals.num_checked > 0


def test_a_draft_model_of_another_vocabulary_is_refused(llm: LLM) -> None:
    config = configure(llm.config, speculate="model", draft_model=str(model_path(RANDOM_LLAMA)))
    with pytest.raises(ConfigError, match="another vocabulary"):
        LLM.over(llm.loaded, config)


def untrained(llm: LLM, kind: str, folder: Path, fingerprint: str | None = None) -> str:
    """A folder of heads as training begins with them, and the name that serves it."""
    shape = head_shape(llm.spec.hidden_size, 9, 3)
    target = head_target(llm.loaded.network)  # type: ignore[arg-type]
    module = EagleModule(shape, target) if kind == "eagle" else MedusaModule(llm.spec.hidden_size, 3)
    folder.mkdir()
    config = head_config(llm, kind, shape) | ({"target_fingerprint": fingerprint} if fingerprint else {})
    write_heads(folder, module.named_tensors(), torch.arange(0, 8192, 2), config)
    return f"{kind}:{folder}"


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_heads_change_no_token(llm: LLM, kind: str, tmp_path: Path) -> None:
    """However bad the guesses are; one of the prompts is drawn with a seed."""
    name = untrained(llm, kind, tmp_path / kind)
    params = [PARAMS["greedy"], SamplingParams(temperature=0.8, seed=3, max_tokens=10)]
    guessing = LLM.over(llm.loaded, configure(llm.config, speculate=name, draft_tokens=2))
    found, plain = guessing.generate(PROMPTS, params), llm.generate(PROMPTS, params)
    assert [each.choices[0].token_ids for each in found] == [each.choices[0].token_ids for each in plain]
    assert guessing.engine.proposer.proposals is not None
    assert guessing.engine.proposer.proposals.num_checked > 10


def test_heads_of_another_target_are_refused(llm: LLM, tmp_path: Path) -> None:
    name = untrained(llm, "eagle", tmp_path / "eagle", fingerprint="of another model")
    with pytest.raises(ConfigError, match="were trained for"):
        LLM.over(llm.loaded, configure(llm.config, speculate=name))
    with pytest.raises(ConfigError, match="names no folder"):
        LLM.over(llm.loaded, configure(llm.config, speculate=f"medusa:{tmp_path / 'absent'}"))


def test_heads_are_tried_on_a_text(llm: LLM, tmp_path: Path) -> None:
    token_ids = llm.files.tokenizer.encode(PASSAGE + PASSAGE, special=False)
    name = untrained(llm, "medusa", tmp_path / "medusa")
    drafter = trial_drafter(llm, name, token_ids)
    found = try_drafts([drafter], token_ids, len(token_ids) // 2, StepCost(), length=2)
    assert found.num_checked > 0
    assert 0.0 <= found.acceptance <= 1.0


def test_a_guess_beyond_the_end_of_a_grammar_ends_the_answer_there(llm: LLM) -> None:
    """Behind its end a grammar allows nothing: what was guessed up to there stands, and nothing else."""
    params = SamplingParams(temperature=0.0, max_tokens=24, regex="[A-Z][a-z]{1,6}( [a-z]{1,6}){2}\\.")
    ((plain,),) = (completion.choices for completion in llm.generate([STORY], params))
    assert plain.finish.reason == "stop"
    end = tuple(llm.files.tokenizer.eos_ids)[:1]
    guessing = LLM.over(llm.loaded, configure(llm.config, speculate="prediction", draft_tokens=16))
    for prediction in ((*plain.token_ids, *end), (*plain.token_ids, *end, *end), tuple(plain.token_ids)):
        prompt = tuple(llm.files.tokenizer.encode(STORY, special=True))
        asked = replace(params, stop_token_ids=end)
        guessing.engine.submit(Request(request_id=len(prediction), prompt=prompt, params=asked, prediction=prediction))
        deltas = []
        while guessing.engine.has_work:
            deltas += guessing.engine.step()
        assert [token for delta in deltas for token in delta.token_ids] == list(plain.token_ids)
        assert deltas[-1].finish is not None
        assert deltas[-1].finish.reason == "stop"
    assert guessing.engine.proposer.proposals is not None
    assert guessing.engine.proposer.proposals.num_accepted > 0
