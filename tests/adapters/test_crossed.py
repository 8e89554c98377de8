"""Adapters beside what else an engine does: drafts, kept KV blocks, files that change. Answers stay those of the adapter."""

import itertools
import shutil
from pathlib import Path

import pytest

from penstock import LLM, SamplingParams
from penstock.errors import ConfigError
from tests.adapters.making import write_adapter
from tests.offline import write_chat_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True)
NAMES = ["", "a0", "a1", "a2", "a0", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crossed")
    write_chat_model(folder / "tiny.gguf")
    for number in range(4):
        write_adapter(folder / f"a{number}", number)
    shutil.copytree(folder / "a0", folder / "copy of a0")
    return folder


def opened(folder: Path, **settings: object) -> LLM:
    adapters = {one.name: one for one in folder.iterdir() if one.is_dir()}
    return LLM(str(folder / "tiny.gguf"), adapters=adapters, max_context=512, **settings)


def tokens(llm: LLM, prompts: list[list[int]], names: list[str], params: SamplingParams = GREEDY) -> list[list[int]]:
    return [list(one.choices[0].token_ids) for one in llm.generate(prompts, params, adapter=names)]


def repeating(number: int) -> list[int]:
    """Drafters find something to guess in it."""
    return [5 + number, 9, 31, 12, 7, 9, 31, 12] * 6


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_drafts_change_no_token_of_an_adapter(folder: Path, params: SamplingParams) -> None:
    prompts = [repeating(number) for number in range(len(NAMES))]
    with opened(folder, speculate="off") as llm:
        plain = tokens(llm, prompts, NAMES, params)
    with opened(folder, speculate="ngram", draft_tokens=4) as llm:
        drafted = llm.generate(prompts, params, adapter=NAMES)
    assert [list(one.choices[0].token_ids) for one in drafted] == plain
    assert len({tuple(one) for one in plain}) > 3


def test_cached_prefixes_and_kept_blocks_are_those_of_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    """Blocks are found again by what an adapter holds: by a copy of it too, by no other, before and after a restart."""
    prompt = repeating(1)
    others = [[17 + number] * 200 for number in range(4)]  # they push all else out of the cache
    settings = {"num_blocks": 40, "kv_disk": str(tmp_path / "kv"), "speculate": "off"}

    def cached(llm: LLM, name: str) -> tuple[list[int], int]:
        (done,) = llm.generate([prompt], GREEDY, adapter=name)
        return list(done.choices[0].token_ids), 0 if done.prefix is None else done.prefix.num_tokens

    with opened(folder, speculate="off", prefix_caching=False) as llm:
        expected = {name: cached(llm, name)[0] for name in ("", "a0", "a1")}
    with opened(folder, **settings) as llm:
        for _ in range(2):  # what is asked for twice is kept
            assert {name: cached(llm, name)[0] for name in expected} == expected
        assert cached(llm, "copy of a0") == (expected["a0"], 32)
        assert cached(llm, "a2")[1] == 0
        for other in others:
            llm.generate([other], GREEDY)
        assert {name: cached(llm, name)[0] for name in expected} == expected
    with opened(folder, **settings) as llm:
        assert {name: cached(llm, name)[0] for name in expected} == expected
        tiers = llm.engine.tiers
        assert tiers is not None
        assert tiers.counts.loaded_blocks > 0
        assert tiers.counts.faults == 0
        before = tiers.counts.loaded_blocks
        cached(llm, "a3")
        assert tiers.counts.loaded_blocks == before


def test_a_file_that_changed_hits_nothing_of_what_it_was(folder: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "one", 5)
    prompt = repeating(2)
    model, settings = str(folder / "tiny.gguf"), {"max_context": 512, "speculate": "off", "max_adapters": 1}
    with LLM(model, adapters={"one": tmp_path / "one", "other": folder / "a1"}, **settings) as llm:
        before = tokens(llm, [prompt], ["one"])
        write_adapter(tmp_path / "one", 6)
        gate = llm.engine.adapters
        assert gate is not None
        from penstock.runtime.engine.adapters.gate import AdapterOrder

        llm.engine.order(AdapterOrder(1, str((tmp_path / "one").resolve())))
        while llm.engine.has_work and not gate.answers():
            llm.engine.step()
        (done,) = llm.generate([prompt], GREEDY, adapter="one")
    with LLM(model, adapters={"one": tmp_path / "one"}, **settings) as llm:
        fresh = tokens(llm, [prompt], ["one"])
    assert [list(done.choices[0].token_ids)] == fresh != before
    assert done.prefix is None or done.prefix.num_tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"tensor": 2}, {"pipeline": 2}], ids=["tensor", "pipeline"])
def test_processes_together_adapt_as_one(folder: Path, layout: dict[str, int]) -> None:
    prompts = [repeating(number) for number in range(len(NAMES))]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with opened(folder, speculate="off") as llm:
        alone = tokens(llm, prompts, NAMES, params)
    with opened(folder, speculate="off", max_adapters=2, **layout) as llm:
        together = tokens(llm, prompts, NAMES, params)
    alike = sum(one == other for one, other in zip(alone, together, strict=True))
    assert alike >= len(NAMES) - 1, "sums of parts are rounded otherwise, words hardly"


SETTINGS: dict[str, dict[str, object]] = {
    "drafts": {"speculate": "ngram", "draft_tokens": 4},
    "kept blocks": {"kv_disk": "kv", "num_blocks": 64},
    "preemption": {"num_blocks": 24},
    "chunks": {"max_batch_tokens": 32, "max_sequences": 24},
    "two slots": {"max_adapters": 2},
    "forgetting": {"long_context": "streaming:4+28"},
}
ASKED: dict[str, dict[str, object]] = {
    "grammar": {"temperature": 0.0, "regex": "[0-9a-f ]{8,16}"},
    "three": {"temperature": 0.9, "seed": 5, "n": 3},
    "three of a grammar": {"temperature": 0.9, "seed": 6, "n": 3, "regex": "(yes|no|perhaps)( then)?"},
}
LOSSY = "forgetting"
REFUSED = {("kept blocks", LOSSY)}
PAIRS = list(itertools.combinations(SETTINGS, 2))


def answers(llm: LLM, asked: dict[str, object], names: list[str]) -> list[list[list[int]]]:
    params = SamplingParams(max_tokens=10, **asked)
    prompts = [repeating(number) for number in range(len(NAMES)) if NAMES[number] in names]
    done = llm.generate(prompts, params, adapter=[name for name in NAMES if name in names])
    return [[list(choice.token_ids) for choice in one.choices] for one in done]


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[bool, dict[str, list[list[list[int]]]]]:
    """Answers without any of it, and of a model that forgets; adapter by adapter."""
    found = {}
    for is_lossy in (False, True):
        settings = SETTINGS[LOSSY] if is_lossy else {}
        with opened(folder, speculate="off", prefix_caching=False, **settings) as llm:
            apart = {kind: {name: answers(llm, asked, [name]) for name in set(NAMES)} for kind, asked in ASKED.items()}
        taken = {kind: {name: iter(each) for name, each in of.items()} for kind, of in apart.items()}
        found[is_lossy] = {kind: [next(taken[kind][name]) for name in NAMES] for kind in ASKED}
    return found


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_whatever_else_an_engine_does_a_mixed_batch_gives_the_answers_of_each_alone(
    folder: Path, tmp_path: Path, plain: dict[bool, dict[str, list[list[list[int]]]]], pair: tuple[str, str]
) -> None:
    settings: dict[str, object] = {"speculate": "off"}
    for name in pair:
        settings |= SETTINGS[name]
    if "kv_disk" in settings:
        settings["kv_disk"] = str(tmp_path / "kv")
    if pair in REFUSED:
        with pytest.raises(ConfigError, match="long-context"):
            opened(folder, **settings)
        return
    with opened(folder, **settings) as llm:
        for _ in range(2 if "kept blocks" in pair else 1):  # what was kept is used
            assert {kind: answers(llm, asked, NAMES) for kind, asked in ASKED.items()} == plain[LOSSY in pair]
