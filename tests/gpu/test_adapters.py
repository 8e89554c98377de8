"""Adapters on the GPU give what their definition gives on the CPU, alone and mixed, while they come and go."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from penstock import LLM, SamplingParams
from penstock.assembly.engine import LoadedModel
from penstock.config import configure
from penstock.runtime.execution.device import open_device
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.layers.decoder import Decoder
from tests.adapters.writing import write
from tests.gpu import machine

KINDS: dict[str, dict[str, Any]] = {
    "small": {"rank": 4},
    "odd": {"rank": 40},
    "dora": {"rank": 16, "use_dora": True},
    "tables": {"rank": 8, "embeds": True, "heads": True},
    "rslora": {"rank": 32, "use_rslora": True},
}
ROUNDED = 0.05
"""Most that scores of float32 numbers differ where products of them are rounded otherwise."""


def opened(adapters: dict[str, Path], device: str, num_slots: int) -> LLM:
    made = dummy_model(machine.spec(), torch.device(device), torch.float32)
    assert isinstance(made, Decoder)
    theirs = dict(machine.cpu_model().named_parameters())
    for name, parameter in made.named_parameters():
        parameter.data = theirs[name].data.to(device)
    named = tuple(f"{name}={path}" for name, path in adapters.items())
    config = configure(
        max_context=512, max_sequences=16, num_blocks=512, adapters=named, max_adapters=num_slots, speculate="off",
        prefix_caching=False, device=device,
    )  # fmt: skip
    llm = LLM.over(LoadedModel(made, open_device(device), None), config)
    if device == "cuda":
        llm.engine.runner.warm_up(512)  # type: ignore[attr-defined]
    return llm


def logprobs(llm: LLM, tokens: list[int], adapter: str) -> torch.Tensor:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    (completion,) = llm.generate([tokens], params, adapter=adapter)
    return torch.tensor([each.logprob for each in completion.prompt_logprobs])


def test_every_kind_of_adapter_gives_what_its_definition_gives() -> None:
    device = "cpu" if machine.IS_DRY else "cuda"
    prompts = [list(prompt) for prompt in machine.prompts(30, 9, 61, 17, 40, 25, 33, 12)]
    with tempfile.TemporaryDirectory() as scratch:
        adapters = {
            kind: write(Path(scratch) / kind, machine.spec(), seed, **settings)
            for seed, (kind, settings) in enumerate(KINDS.items())
        }
        oracle, ours = opened(adapters, "cpu", 5), opened(adapters, device, 2)
        for kind in ("", *KINDS):  # two slots for five: they come and go
            found, expected = (logprobs(llm, prompts[2], kind) for llm in (ours, oracle))
            assert (found - expected).abs().max() < ROUNDED, (kind, (found - expected).abs().max())
        names = ["", *KINDS, "small", "dora"]
        params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=0, ignore_eos=True)
        for completion, prompt, name in zip(ours.generate(prompts, params, adapter=names), prompts, names):
            answer = completion.choices[0]
            expected = logprobs(oracle, [*prompt, *answer.token_ids], name)[-len(answer.token_ids) :]
            found = torch.tensor([each.logprob for each in answer.logprobs])
            assert (found - expected).abs().max() < ROUNDED, (name, (found - expected).abs().max())
        ours.close()
        oracle.close()
