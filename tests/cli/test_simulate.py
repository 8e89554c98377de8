"""Laws of `penstock simulate`: the same load gives the same answer, data equals tables, bad wishes are refused."""

import json

import pytest

from penstock.cli import simulate as command
from penstock.cli.args import build
from penstock.cli.main import main

SMALL = ("--num-requests", "40", "--rate", "20", "--answers", "5-60")


def simulate(capsys, *words):
    status = main(["simulate", *SMALL, *words])
    return status, capsys.readouterr()


def test_tables_tell_latency_throughput_cache_and_replicas(capsys):
    status, printed = simulate(capsys, "--replicas", "2", "--ttft-s", "0.5")
    assert status == 0
    for word in (
        "TTFT",
        "TPOT",
        "ITL",
        "E2E",
        "p99",
        "output tokens/s",
        "goodput, requests/s",
        "KV",
        "preemptions",
        "busy %",
    ):
        assert word in printed.out
    assert printed.err == ""


def test_comparison_has_a_column_for_each_strategy(capsys):
    status, printed = simulate(capsys, "--compare", "--max-sequences", "8")
    assert status == 0
    assert "static" in printed.out
    assert "dynamic" in printed.out
    assert "continuous" in printed.out


def test_json_holds_all_that_was_asked_and_found(capsys):
    status, printed = simulate(capsys, "--json", "--compare", "--max-sequences", "4", "--max-waiting", "8")
    assert status == 0
    data = json.loads(printed.out)
    assert list(data["results"]) == ["static", "dynamic", "continuous"]
    for result in data["results"].values():
        assert sum(result["summary"]["outcomes"].values()) == 40
        assert sum(replica["num_requests"] for replica in result["replicas"]) == 40
        assert result["replicas"][0]["history"][0]["time_s"] >= 0
    assert data["results"]["static"]["summary"]["outcomes"]["refused"] > 0
    assert data["asked"]["load"]["num_requests"] == data["workload"]["num_requests"] == 40
    assert data["sizing"]["num_blocks"] > 0


def test_refusals_are_shown_whichever_strategy_refuses(capsys):
    status, printed = simulate(capsys, "--compare", "--max-sequences", "4", "--max-waiting", "8")
    assert status == 0
    assert "refused" in printed.out


def test_the_same_seed_gives_the_same_answer(capsys):
    first, second, other = (simulate(capsys, "--json", "--seed", seed)[1].out for seed in "334")
    assert first == second != other


@pytest.mark.parametrize(
    "words",
    [
        ("--rate", "0"),
        ("--burstiness", "0"),
        ("--burstiness", "3"),
        ("--overlap",),
        ("--shared-prefix", "64"),
        ("--weights", "int4", "--kv", "fp8", "--hardware", "l4"),
        ("--model", "qwen3-30b-a3b", "--policy", "round-robin"),
        ("--model", "gemma-3-4b", "--hardware", "rtx-4090"),
        ("--model", "smollm2-135m", "--hardware", "cloud-2core"),
    ],
)
def test_every_knob_turns(capsys, words):
    status, printed = simulate(capsys, "--json", *words)
    assert status == 0
    (result,) = json.loads(printed.out)["results"].values()
    assert result["summary"]["outcomes"]["length"] == 40


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--model", "llama-3.1-8x"), "did you mean llama-3.1-8b"),
        (("--model", "missing/config.json"), "cannot read"),
        (("--hardware", "h100-smx"), "did you mean h100-sxm"),
        (("--model", "llama-3.1-70b"), "no memory is left"),
        (("--weights", "bf16", "--hardware", "t4", "--model", "smollm2-135m"), "does not compute in bf16"),
        (("--rate", "-1"), "the rate is"),
        (("--burstiness", "-1"), "variation"),
        (("--prompts", "many"), "cannot read lengths"),
        (("--num-requests", "0"), "0 requests"),
        (("--replicas", "0"), "--replicas is 0"),
        (("--ttft-s", "0"), "SLO"),
        (("--shared-prefix", "-1"), "shared prefixes"),
        (("--max-context", "10000000"), "made for"),
    ],
)
def test_bad_wishes_are_refused_with_a_way_out(capsys, words, hint):
    status, printed = simulate(capsys, *words)
    assert status == 2
    assert hint in printed.err
    assert printed.out == ""


SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


def test_a_config_file_is_a_model(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHAPE))
    assert command.read_spec(str(path)).num_layers == 2
    assert simulate(capsys, "--model", str(path))[0] == 0


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", "[" * 100_000, '{"model_type": "abacus"}'])
def test_a_broken_config_file_is_refused(capsys, tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content)
    status, printed = simulate(capsys, "--model", str(path))
    assert status == 2
    assert printed.err.startswith("penstock: error:")


def test_defaults_are_a_config():
    assert build(command.Config, {}) == command.Config()
