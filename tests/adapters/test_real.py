"""A trained adapter on the default model: what peft answers with, the server's native steps answer with too."""

import random
from pathlib import Path

import pytest
import torch

from penstock import LLM, SamplingParams
from tests.adapters.making import write_adapter
from tests.offline import write_chat_model
from tools.train_adapter import train

ASKED = "<|im_start|>user\nWhat is a river?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.slow
@torch.inference_mode(False)
def test_a_trained_adapter_answers_as_peft_does(tmp_path: Path) -> None:
    theirs = train(tmp_path / "word", rank=8, num_steps=24, word="penstock")
    with LLM("default", adapters={"word": tmp_path / "word"}, max_context=512) as llm:
        prompt = llm.files.tokenizer.encode(ASKED, special=False)
        params = SamplingParams(temperature=0.0, max_tokens=16, prompt_logprobs=0)
        (ours,) = llm.generate([prompt], params, adapter="word")
        (base,) = llm.generate([prompt], params)
    assert ours.choices[0].text.startswith("penstock")
    assert "penstock" not in base.choices[0].text
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([prompt])).logits[0].float()
    expected = logits[:-1].log_softmax(-1)[torch.arange(len(prompt) - 1), torch.tensor(prompt[1:])]
    found = torch.tensor([each.logprob for each in ours.prompt_logprobs])
    assert (found - expected).abs().mean() < 0.2  # packed weights, 8-bit products


@pytest.mark.slow
def test_a_thousand_adapters_on_disk_and_sixteen_slots(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "tiny.gguf")
    adapters = {f"a{number}": write_adapter(tmp_path / f"a{number}", number) for number in range(1000)}
    source = random.Random(2)
    names = [f"a{min(int(source.paretovariate(0.6)), 999)}" for _ in range(600)]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    prompts = [[5 + number % 60, 7, 9] for number in range(600)]
    with LLM(str(tmp_path / "tiny.gguf"), adapters=adapters, max_adapters=16, max_context=128) as llm:
        completions = llm.generate(prompts, params, adapter=names)
        assert llm.engine.adapters is not None
        assert llm.engine.adapters.counts.num_evicted > 50
        llm.engine.check()
    assert all(len(one.choices[0].token_ids) == 4 for one in completions)
