"""Laws of the baselines: what paging and packing spare is what reserving and padding waste."""

import json
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.runtime.core.batch import Batch, Chunk
from penstock.tools.sim.padding import PaddedCost, padded

LOAD = (
    "--num-requests", "120", "--rate", "12", "--max-context", "4096", "--prompts", "50-400",
    "--answers", "lognormal:60:1.0:1-800", "--no-prefix-caching", "--json",
)  # fmt: skip


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["simulate", *LOAD, *words]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"].values()
    return found


def test_reserving_contexts_wastes_most_of_them_and_lets_fewer_run(capsys: pytest.CaptureFixture[str]) -> None:
    paged = simulated(capsys, "--kv-memory", "2GiB")
    contiguous = simulated(capsys, "--kv-memory", "2GiB", "allocation=contiguous")
    assert paged["kv_waste_fraction"] < 0.1
    assert contiguous["kv_waste_fraction"] > 0.6
    assert contiguous["replicas"][0]["mean_running"] <= 2 * 1024**3 / (131072 * 4096) + 1
    assert contiguous["summary"]["ttft"]["p99"] > paged["summary"]["ttft"]["p99"]


def test_not_one_context_that_fits_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *LOAD, "--kv-memory", "64MiB", "allocation=contiguous"]) == 2
    assert "--max-context" in capsys.readouterr().err


def test_padding_computes_more_and_takes_longer(capsys: pytest.CaptureFixture[str]) -> None:
    plain = simulated(capsys, "batching=static")
    rectangles = simulated(capsys, "batching=static", "padding=true")
    assert plain["padding_waste_fraction"] == 0.0
    assert rectangles["padding_waste_fraction"] > 0.05
    assert rectangles["padding_read_waste_fraction"] > 0.05
    assert rectangles["summary"]["e2e"]["mean"] > plain["summary"]["e2e"]["mean"]


def test_a_padded_batch_is_a_rectangle_of_prompts_beside_one_of_answers() -> None:
    chunks = (_chunk(0, 0, 10), _chunk(1, 0, 30), _chunk(2, 100, 1), _chunk(3, 7, 1))
    found = padded(Batch(0, chunks)).chunks
    assert [(one.start, one.length) for one in found] == [(0, 30), (0, 30), (100, 1), (100, 1)]
    cost = PaddedCost(_Counting())
    assert cost.step_s(Batch(0, chunks)) == 62.0
    assert cost.waste_fraction == pytest.approx(1 - 42 / 62)
    assert cost.read_waste_fraction == pytest.approx(1 - (10 + 30 + 101 + 8) / (30 + 30 + 101 + 101))


def test_textbook_steps_are_never_longer(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(capsys, "--textbook")["summary"]["tpot"]["p50"] < simulated(capsys)["summary"]["tpot"]["p50"]


def test_two_deployments_are_simulated_on_the_same_terms_and_priced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, second = tmp_path / "one.toml", tmp_path / "two.toml"
    first.write_text('model = "llama-3.1-8b"\nmax-context = 4096\n[machines]\nhardware = "h100"\n')
    second.write_text('model = "llama-3.1-8b"\nmax-context = 4096\n[machines]\nhardware = "h100"\nreplicas = 2\n')
    words = ("--num-requests", "60", "--rate", "5")
    assert main(["simulate", str(first), str(second), *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    one, two = found["one.toml"]["figures"], found["two.toml"]["figures"]
    assert two["$ an hour"] == pytest.approx(2 * one["$ an hour"], rel=0.05)
    assert one["$ a million tokens"] < two["$ a million tokens"]
    assert main(["simulate", "--config", str(first), *words, "--json"]) == 0
    (alone,) = json.loads(capsys.readouterr().out)["results"].values()
    assert one["tokens/s"] == alone["summary"]["output_tokens_per_s"]
    assert main(["simulate", str(first), str(second), *words]) == 0
    assert "$ a million tokens" in capsys.readouterr().out
    assert main(["simulate", str(first), str(first)]) == 2


def _chunk(row: int, start: int, length: int) -> Chunk:
    return Chunk(row, start, length, (), (), True, None, 0)


class _Counting:
    def step_s(self, batch: Batch) -> float:
        return float(sum(chunk.length for chunk in batch.chunks))

    def run_s(self, batch: Batch, num_steps: int) -> list[float]:
        return [self.step_s(batch)] * num_steps
