"""Adapters with a scale and several at once: a model name such as `one*0.5+other`. The oracle merges them into the matrices."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock import LLM, SamplingParams
from penstock.errors import RequestError
from penstock.runtime.core.request import mix_of, mix_parts
from tests.adapters.making import write_adapter
from tests.offline import write_chat_model

PROMPT = [5, 9, 31, 12, 7, 40, 3]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    write_chat_model(folder / "tiny.gguf")
    for number in range(3):
        write_adapter(folder / f"a{number}", number)
    half = load_file(write_adapter(folder / "half", 0) / "adapter_model.safetensors")
    save_file({name: one * 0.5 if "lora_B" in name else one for name, one in half.items()},
              folder / "half" / "adapter_model.safetensors")  # fmt: skip
    one, other = (load_file(folder / name / "adapter_model.safetensors") for name in ("a0", "a1"))
    together = {
        name: torch.cat([one[name], other[name]]) if "lora_A" in name
        else torch.cat([one[name] * 0.5, other[name] * -1.5], 1)
        for name in one
    }  # fmt: skip
    write_adapter(folder / "both", 0, rank=8)
    save_file(together, folder / "both" / "adapter_model.safetensors")
    dora = load_file(write_adapter(folder / "dora", 4, use_dora=True) / "adapter_model.safetensors")
    lengths = {name.replace("lora_B.weight", "lora_magnitude_vector"): torch.ones(len(one))
               for name, one in dora.items() if "lora_B" in name}  # fmt: skip
    save_file(dora | lengths, folder / "dora" / "adapter_model.safetensors")
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    adapters = {one.name: one for one in folder.iterdir() if one.is_dir()}
    settings = {"max_context": 128, "max_adapters": 2, "max_adapter_rank": 8, "speculate": "off"}
    with LLM(str(folder / "tiny.gguf"), adapters=adapters, **settings) as llm:
        yield llm


def scored(llm: LLM, adapter: str) -> torch.Tensor:
    (found,) = llm.score([PROMPT], adapter=adapter)
    return torch.tensor([each.logprob for each in found])


def test_a_scale_and_a_sum_are_what_their_matrices_make(llm: LLM) -> None:
    for name, truth in (("a0*0.5", "half"), ("a0*0.5+a1*-1.5", "both"), ("a1*-1.5+a0*0.5", "both"), ("a2*1", "a2")):
        assert (scored(llm, name) - scored(llm, truth)).abs().max() < 2e-3, name
    assert (scored(llm, "a0*0.5") - scored(llm, "a0")).abs().max() > 1e-2


def test_a_batch_mixes_scales_as_each_alone(llm: LLM) -> None:
    names = ["", "a0", "a0*0.5", "a0*2", "a0+a1", "a1"]
    alone = [list(llm.generate([PROMPT], GREEDY, adapter=name)[0].choices[0].token_ids) for name in names]
    together = llm.generate([PROMPT] * len(names), GREEDY, adapter=names)
    assert [list(one.choices[0].token_ids) for one in together] == alone


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a0*9", "scale"), ("a0*", "scale"), ("a0*nan", "scale"), ("a0*0", "scale"), ("a0+nothing", "not known"),
        ("a0+a1+a2+half+both", "at most 4"), ("a0+a1+a2", "rank 12"), ("dora*0.5", "DoRA"),
    ],
)  # fmt: skip
def test_what_cannot_be_laid_over_a_model_together_is_refused(llm: LLM, name: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        llm.generate([PROMPT], GREEDY, adapter=name)


def test_names_and_parts_go_there_and_back() -> None:
    paths = {"a": "/x/a b", "c+d": "/y", "e": "/z*2"}
    assert mix_of("a", {}) is None
    assert mix_parts("/plain/path*2") == [("/plain/path*2", 1.0)]
    assert mix_parts(mix_of("e*0.333+a", paths) or "") == [("/x/a b", 1.0), ("/z*2", 0.33)]
