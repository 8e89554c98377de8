"""Laws of recordings: replayed on the simulator, a server's own recording meets the prefixes that the server met."""

import json
from pathlib import Path
from random import Random

import pytest

from penstock.cli.main import main
from penstock.errors import ConfigError
from penstock.runtime.core.request import SamplingParams
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.trace_files import read
from tests.engine.answers import expected_tokens
from tests.server.serving import Server, serving
from tests.sim.fleets import make_fleet
from tests.workload.trace_writers import write

NUM_ANSWER = 40
PARAMS = SamplingParams(max_tokens=NUM_ANSWER, temperature=0.0, ignore_eos=True)


def ask(server: Server, prompt: list[int]) -> list[int]:
    """Its answer's tokens, which the oracle knows."""
    body = {"prompt": prompt, "max_tokens": NUM_ANSWER, "temperature": 0, "ignore_eos": True}
    assert server.post("/v1/completions", body).status_code == 200
    return expected_tokens(tuple(prompt), PARAMS, 0, NUM_ANSWER, 256)


def test_a_replay_meets_the_prefixes_that_the_server_met(tmp_path: Path) -> None:
    path, random = tmp_path / "trace.jsonl", Random(7)
    shared = random.choices(range(97, 122), k=150)
    with serving("--record", str(path)) as server:
        for length in (9, 33, 60):
            ask(server, [*shared, *random.choices(range(97, 122), k=length)])
        history = random.choices(range(97, 122), k=70)
        for _ in range(3):
            history += ask(server, history) + random.choices(range(97, 122), k=21)
        server.stop()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    recorded = [line["cached_length"] for line in lines]
    assert recorded[1:3] == [144, 144], "a beginning shorter than 512 tokens is shared"
    assert recorded[4] > 70, "a next turn finds the answer before it, too"

    trace = read(path)
    slower = trace.faster(0.01)  # an oracle answers sooner than the device simulated, and each turn follows an answer
    result = simulate(make_fleet(), slower.workload(50_000))
    replayed = result.replicas[0].num_cached_tokens
    assert replayed == pytest.approx(sum(recorded), abs=0.01 * sum(trace.prompt_lengths))
    write(tmp_path / "again.jsonl", trace)
    again = read(tmp_path / "again.jsonl")
    assert (again.blocks, again.block_size, again.names_answers) == (trace.blocks, 16, True)


def test_a_file_of_two_sizes_of_blocks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    fine = '{"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [1, 2], "block_size": 16}\n'
    path.write_text(fine + fine.replace('"block_size": 16', '"block_size": 8'))
    with pytest.raises(ConfigError, match="line 2: hash_ids of 8 tokens after such of 16"):
        read(path)
    path.write_text(fine.replace("[1, 2]", "[1, 2, 3]"))
    with pytest.raises(ConfigError, match="3 hash_ids are too many for 40 tokens, 16 an id"):
        read(path)


def test_the_prefix_doctor_names_a_timestamp_and_keeps_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    rules = "Answer as the shop's assistant does, briefly, and never promise anything at all. " * 4
    with serving("--watch-prefixes", "on") as server:
        for minute in range(3):
            prompt = f"It is 14:0{minute} o'clock now. {rules}Question {minute}?"
            assert server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2}).status_code == 200
        assert main(["doctor", "cache", server.url]) == 1
        told = capsys.readouterr().out
        data = server.get("/app/v1/prefixes").json()
    assert "date or time" in told
    assert "put the date after everything" in told
    (model,) = data.values()
    assert model["causes"][0]["count"] == 2
    assert model["causes"][0]["num_lost"] > 400
    assert "shop" not in json.dumps(data)
    with serving() as server:
        assert main(["doctor", "cache", server.url]) == 2
        assert "--watch-prefixes on" in capsys.readouterr().err
