"""Native steps compute adapters as the torch decoder does, and a batch of many as each alone, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import LLM, SamplingParams
from penstock.assembly.engine import LoadedModel
from penstock.config import configure
from penstock.runtime.execution.device import open_device
from tests.adapters.writing import write
from tests.runtime.test_native import SPECS, twins

SCORED = SamplingParams(temperature=0.0, max_tokens=6, prompt_logprobs=0, logprobs=0, ignore_eos=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, logprobs=0, ignore_eos=True)


def opened(network: Any, adapters: dict[str, Path], **settings: Any) -> LLM:
    named = tuple(f"{name}={path}" for name, path in adapters.items())
    config = configure(max_context=256, max_sequences=16, adapters=named, speculate="off", **settings)
    return LLM.over(LoadedModel(network, open_device("cpu"), None), config)


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(8)
    return [torch.randint(0, 203, (5 + 3 * number,), generator=generator).tolist() for number in range(count)]


def scores(llm: LLM, prompt: list[int], adapter: str) -> list[float]:
    (completion,) = llm.generate([prompt], SCORED, adapter=adapter)
    return [each.logprob for each in completion.prompt_logprobs]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("plain", {}),
        ("plain", {"use_dora": True}),
        ("biased", {"use_dora": True}),
        ("sandwich", {}),
        ("plain", {"embeds": True, "heads": True}),
        ("tied", {"heads": True}),
        ("tied", {"heads": True, "use_dora": True}),
    ],
)
def test_native_steps_compute_what_torch_computes(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    spec = SPECS[name]
    adapters = {"a": write(tmp_path / "a", spec, 1, **config)}
    plain, native = twins(spec)
    prompt = prompts(12)[-1]
    with opened(native, adapters) as llm:
        ours, base = scores(llm, prompt, "a"), scores(llm, prompt, "")
    with opened(plain, adapters) as llm:
        theirs = scores(llm, prompt, "a")
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=0.06, rtol=0.02)
    assert (torch.tensor(ours) - torch.tensor(base)).abs().max() > 0.5


@pytest.mark.parametrize("kernels", ["portable", "avx2", "avx512", "amx-emulated"])
def test_a_mixed_batch_gives_the_bits_of_each_alone(kernels: str, tmp_path: Path) -> None:
    spec = SPECS["plain"]
    kinds: list[dict[str, Any]] = [
        {},
        {"use_dora": True},
        {"heads": True},
        {},
        {"embeds": True},
        {},
        {"use_dora": True},
        {},
    ]
    adapters = {f"a{n}": write(tmp_path / f"a{n}", spec, n, rank=3 + n, **dict(kind)) for n, kind in enumerate(kinds)}
    names = ["", *adapters, "", "a1", *["a0"] * 4]
    _, native = twins(spec, kernels)

    def found(llm: LLM, several: list[list[int]], adapters: list[str]) -> list[list[tuple[int, float]]]:
        completions = llm.generate(several, GREEDY, adapter=adapters)
        return [[(each.token_id, each.logprob) for each in one.choices[0].logprobs] for one in completions]

    with opened(native, adapters, prefix_caching=False) as llm:
        together = found(llm, prompts(len(names)), names)
        alone = [found(llm, [prompt], [name])[0] for prompt, name in zip(prompts(len(names)), names)]
    assert together == alone
    with opened(native, {"a0": adapters["a0"]}, prefix_caching=False) as llm:  # no DoRA lies in another slot
        several = prompts(len(names))
        assert found(llm, [several[1]], ["a0"]) == [together[1]]
