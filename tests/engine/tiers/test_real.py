"""Answers with blocks from tiers are the answers without, to the bit; a restart keeps them; damage changes no text."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import LLM, SamplingParams
from penstock.errors import ConfigError
from tests.engine.tiers.test_laws import damage
from tests.offline import write_chat_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
BLOCKS = 48
EXACT = {"num_blocks": BLOCKS, "speculate": "off", "invariant": True}
"""Other products round by how much of a prompt is computed at once, so that what is cached changes the last bits."""


def prompts(count: int = 5) -> list[list[int]]:
    """Each fills a third of the cache, so that together they do not fit."""
    return [
        [100 + (7 * number + place * (number + 3)) % 4000 for place in range(16 * 16 + 5)] for number in range(count)
    ]


def answers(llm: LLM, rounds: int = 1) -> list[list[int]]:
    return [list(llm.generate([prompt], GREEDY)[0].choices[0].token_ids) for _ in range(rounds) for prompt in prompts()]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    with LLM("default", **EXACT) as llm:
        return answers(llm)


def test_blocks_come_back_from_host_memory_unchanged(expected: list[list[int]]) -> None:
    with LLM("default", kv_host="512MiB", **EXACT) as llm:
        assert answers(llm, rounds=3) == expected * 3
        counts = llm.engine.tiers.counts
        assert counts.stored_blocks >= 5 * 15
        assert counts.loaded_blocks >= 5 * 15
        assert counts.faults == 0
        llm.engine.check()


def test_a_restart_keeps_them_and_damage_changes_no_text(expected: list[list[int]], tmp_path: Path) -> None:
    settings = {**EXACT, "kv_disk": str(tmp_path)}
    with LLM("default", **settings) as llm:
        assert answers(llm, rounds=2) == expected * 2
    with LLM("default", **settings) as llm:
        assert answers(llm) == expected
        assert llm.engine.tiers.counts.loaded_blocks >= 5 * 15
        assert llm.engine.tiers.counts.faults == 0
    for segment in tmp_path.rglob("*.kv"):
        data = bytearray(segment.read_bytes())
        for place in range(0, len(data), 50_000):
            data[place] ^= 255
        segment.write_bytes(data)
    with LLM("default", **settings) as llm:
        assert answers(llm) == expected
        assert llm.engine.tiers.counts.faults >= 5


def test_another_format_hits_nothing(expected: list[list[int]], tmp_path: Path) -> None:
    with LLM("default", num_blocks=BLOCKS, kv_disk=str(tmp_path), speculate="off") as llm:
        answers(llm, rounds=2)
    with LLM("default", num_blocks=BLOCKS, kv_disk=str(tmp_path), kv="int8", speculate="off") as llm:
        answers(llm)
        assert llm.engine.tiers.counts.loaded_blocks == 0


def test_tiers_need_prefixes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep cached prefixes"):
        LLM("default", kv_disk=str(tmp_path), prefix_caching=False)


@pytest.mark.slow
def test_runners_read_each_others_records(expected: list[list[int]], tmp_path: Path) -> None:
    """Native steps have their own order of a block; plain torch steps find their records all the same, and the other way."""
    settings = {"num_blocks": BLOCKS, "kv_disk": str(tmp_path), "speculate": "off"}
    with LLM("default", **settings) as llm:
        answers(llm, rounds=2)
    with LLM("default", dtype="bfloat16", **settings) as llm:
        alike = sum(one[0] == other[0] for one, other in zip(answers(llm), expected, strict=True))
        assert llm.engine.tiers.counts.loaded_blocks >= 5 * 15
        assert llm.engine.tiers.counts.faults == 0
        assert alike >= 4, "rounding differs between runners, words hardly"


def many(num_tokens: int) -> list[list[int]]:
    """200 prompts of 40 beginnings, which together do not fit the pool."""
    stems = [
        [9 + (11 * number + place * (number + 5)) % (num_tokens - 220) for place in range(5 * 16)]
        for number in range(40)
    ]
    return [[*stems[number % 40], num_tokens - 210 + number] for number in range(200)]


def forced(llm: LLM) -> LLM:
    """Whatever a tier has is loaded, however fast it could be computed."""
    rates = llm.engine.tiers.rates
    rates.note_prompt(1, 1000.0)
    rates.note_prompt = lambda *_: None
    return llm


def all_answers(llm: LLM, num_tokens: int) -> list[list[int]]:
    return [list(llm.generate([prompt], GREEDY)[0].choices[0].token_ids) for prompt in many(num_tokens)]


KILLED = """
import os, sys
from penstock import LLM
from tests.engine.tiers.test_real import BLOCKS, GREEDY, forced, many
is_invariant = sys.argv[2] == "default"
settings = {"num_blocks": BLOCKS, "speculate": "off", "invariant": is_invariant}
llm = forced(LLM(sys.argv[2], kv_disk=sys.argv[1], kv_host=sys.argv[3], **settings))
for number, prompt in enumerate(many(int(sys.argv[4]))):
    llm.generate([prompt], GREEDY)
    if number == 120:
        os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("model", "host", "num_tokens"), [("tiny", "64KiB", 250), ("default", "2MiB", 4000)])
def test_two_hundred_prompts_with_every_tier_over_a_kill_and_with_damage(
    tmp_path: Path, model: str, host: str, num_tokens: int
) -> None:
    """Bit for bit what an engine without tiers says: with host memory and disk, after a kill -9, with records flipped, cut off,
    swapped and gone, and every such fault is counted."""
    plain = EXACT | {"invariant": model == "default"}  # no other products are to be had for the tiny one
    model = str(write_chat_model(tmp_path / "tiny.gguf")) if model == "tiny" else model
    folder = tmp_path / "kv"
    with LLM(model, **plain) as llm:
        right = all_answers(llm, num_tokens)
    words = [sys.executable, "-c", KILLED, str(folder), model, host, str(num_tokens)]
    assert subprocess.run(words, check=False).returncode == -9
    settings = {**plain, "kv_disk": str(folder), "kv_host": host}
    with LLM(model, **settings) as llm:
        assert all_answers(forced(llm), num_tokens) == right
        counts = llm.engine.tiers.counts
        assert counts.loaded_blocks > 100
        assert counts.faults == 0
    faults = ["flipped", "truncated", "swapped", "gone"] if model != "default" else ["flipped"]
    for fault in faults:
        damage(folder, fault)
        with LLM(model, **settings) as llm:
            assert all_answers(forced(llm), num_tokens) == right
            assert llm.engine.tiers.counts.faults
