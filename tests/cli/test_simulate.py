"""Laws of `penstock simulate`: the same load gives the same answer, data equals tables, bad options are refused."""

import json

import pytest

from penstock.cli.main import main
from penstock.cli.simulate import command
from penstock.cli.simulate.techniques import Techniques
from penstock.console.args import build
from penstock.tools.cost.hardware import Link

SMALL = ("--num-requests", "40", "--rate", "20", "--answers", "5-60")


def simulate(capsys, *words):
    status = main(["simulate", *SMALL, *words])
    return status, capsys.readouterr()


def test_tables_tell_latency_throughput_cache_and_replicas(capsys):
    status, printed = simulate(capsys, "--replicas", "2", "ttft-s=0.5")
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
        "utilisation (rho)",
        "inside (L = rate x time)",
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


def test_what_serve_does_not_do_is_said_beside_what_it_would_give(capsys):
    words = ["simulate", "--model", "qwen3-30b-a3b", "--hardware", "h200", "--num-requests", "2"]
    assert main([*words, "--weights", "fp8"]) == 0
    assert "not yet     fp8 weights: experts of a mixture are computed in 16 bits" in capsys.readouterr().out
    assert main(words) == 0
    assert "not yet" not in capsys.readouterr().out


def test_the_same_seed_gives_the_same_answer(capsys):
    first, second, other = (simulate(capsys, "--json", "--seed", seed)[1].out for seed in "334")
    assert first == second != other


@pytest.mark.parametrize(
    "words",
    [
        ("--rate", "0"),
        ("--burstiness", "0"),
        ("--burstiness", "3"),
        ("--arrivals", "gamma"),
        ("overlap=true",),
        ("--shared-prefix", "64"),
        ("--weights", "int4", "--kv", "fp8", "--hardware", "l4"),
        ("--model", "qwen3-30b-a3b", "--policy", "round-robin"),
        ("--model", "gemma-3-4b", "--hardware", "rtx-4090"),
        ("--model", "smollm2-135m", "--hardware", "cloud-2core"),
        ("--model", "llama-3.1-70b", "--tensor", "4"),
        ("--model", "llama-3.1-70b", "--tensor", "2", "--pipeline", "2", "--weights", "fp8"),
        ("--model", "qwen3-30b-a3b", "--replicas", "4", "--expert", "4"),
        ("--speculate", "4", "acceptance=0.9", "draft-cost=0.1", "speculate-up-to=64"),
        ("--prefill-replicas", "1", "local-below=100", "transfer-gb-s=10"),
        ("--scale-to", "3", "scale-target=4", "cold-start-s=1", "down-delay-s=2"),
        ("--scale-to", "3", "scale-by=utilisation", "cold-start-s=0.5"),
        ("--shared-prefix", "64", "--num-prefixes", "3", "shared-fraction=0.5", "--policy", "prefix-reported"),
        ("--replicas", "3", "--policy", "power-of-two"),
        ("--replicas", "3", "--policy", "session"),
        ("--replicas", "3", "--policy", "consistent-hash"),
        ("--replicas", "3", "--policy", "prefix-predicted"),
        ("deadline-s=1000",),
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
        (("--burstiness", "-1"), "--burstiness is -1"),
        (("--prompts", "many"), "cannot read lengths"),
        (("--num-requests", "0"), "--num-requests is 0; choose 1 to 10,000,000"),
        (("--replicas", "0"), "--replicas is 0"),
        (("ttft-s=0",), "SLO"),
        (("--shared-prefix", "-1"), "shared prefixes"),
        (("--max-context", "10000000"), "made for"),
        (("--tensor", "3"), "choose 2 or 4"),
        (("--pipeline", "0"), "pipeline parallelism is 0"),
        (("--expert", "2", "--replicas", "2"), "has no experts"),
        (("--expert", "8"), "multiple of 8 copies"),
        (("--speculate", "99"), "99 drafts"),
        (("--speculate", "2", "acceptance=1.5"), "accepted is 1.5"),
        (("--prefill-replicas", "1", "--no-prefix-caching"), "leave prefix caching on"),
        (("--prefill-replicas", "1", "transfer-gb-s=0"), "transfer-gb-s is 0"),
        (("--prefill-replicas", "1", "--scale-to", "4"), "leave one of the two out"),
        (("--scale-to", "0"), "scaling from 1 to 0"),
        (("max-pending=0",), "choose 1 or more"),
        (("deadline-s=0",), "deadline-s is 0.0"),
        (("--trace", "missing.jsonl"), "missing.jsonl"),
        (("--compare", "--chrome-trace", "x.json"), "a trace shows one run"),
    ],
)
def test_bad_options_are_refused_with_a_way_out(capsys, words, hint):
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
    assert command.describe(str(path)).spec.num_layers == 2
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


def test_a_chrome_trace_is_written(capsys, tmp_path):
    path = tmp_path / "trace.json"
    status, _ = simulate(capsys, "--replicas", "2", "--chrome-trace", str(path))
    assert status == 0
    events = json.loads(path.read_text())["traceEvents"]
    assert {"X", "C", "b", "e", "M"} == {event["ph"] for event in events}


def test_a_recorded_trace_is_replayed(capsys, tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 100 * number, "input_length": 700, "output_length": 5, "hash_ids": [1, 100 + number]}
        for number in range(20)
    ]
    rows.append({"timestamp": 50, "input_length": 700, "output_length": 0, "hash_ids": [1]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, printed = simulate(capsys, "--trace", str(path), "deadline-s=60")
    assert "; 1 without an answer left out" in printed.out
    status, printed = simulate(capsys, "--json", "--trace", str(path), "trace-speed=2", "--num-requests", "15")
    assert status == 0
    data = json.loads(printed.out)
    summary = data["results"]["continuous"]["summary"]
    assert data["workload"]["num_requests"] == summary["outcomes"]["length"] == 15
    assert data["workload"]["span_s"] == pytest.approx(0.7)
    assert data["workload"]["num_unanswered"] == 1
    assert summary["num_cached_tokens"] == 14 * 512


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("--rate", "2"), "bound by nothing"),
        (("--rate", "0", "--max-sequences", "4"), "bound by --max-sequences"),
        (("--rate", "0", "--num-blocks", "60"), "bound by KV memory"),
        (("--rate", "0", "max-pending=5"), "refused by the router"),
        (("--rate", "0", "deadline-s=0.05"), "deadline"),
        (("--speculate", "3"), "drafts accepted"),
        (("--prefill-replicas", "1"), "prompts handed over"),
    ],
)
def test_the_report_tells_what_bound_the_run_and_what_was_used(capsys, words, reported):
    status, printed = simulate(capsys, *words)
    assert status == 0
    assert reported in printed.out


def test_a_link_between_replicas_is_told_as_a_whole() -> None:
    """However many devices share a replica, its keys and values pass the link that was named."""
    alone = Techniques(prefill_replicas=1, transfer_gb_s=50.0).split(327_680.0, None)
    assert alone is not None
    assert alone.link.bandwidth_bytes_per_s == 50e9
    network = Link("network", 40e9, 15e-6)
    shared = Techniques(prefill_replicas=1).split(327_680.0, network, 8)
    assert shared is not None
    assert shared.link.bandwidth_bytes_per_s == 8 * 40e9
    assert shared.kv_bytes_per_token == 327_680.0


def test_tenants_sessions_priorities_and_users_are_told_apart(capsys):
    status, printed = simulate(capsys, "tenants=80,20", "urgent-fraction=0.3", "--json")
    assert status == 0
    groups = json.loads(printed.out)["results"]["continuous"]["groups"]
    assert {"tenant 1", "tenant 2", "tenant 1, priority 1"} <= set(groups)
    status, printed = simulate(capsys, "--users", "4", "--think-s", "1", "--json")
    found = json.loads(printed.out)["results"]["continuous"]
    assert found["summary"]["outcomes"]["length"] == 40
    assert found["queue"]["inside"] <= 4
    assert found["queue"]["stability"]["is_stable"]
    assert simulate(capsys, "tenants=many")[0] == 2
    assert simulate(capsys, "--users", "0")[0] == 2


def test_a_run_whose_queue_grows_says_so_instead_of_latencies(capsys):
    status, printed = simulate(capsys, "--num-requests", "300", "--rate", "100", "--max-sequences", "2")
    assert status == 0
    assert "unstable" in printed.out
    assert "TTFT" not in printed.out.split("goodput")[1].split("outcome")[0].replace("TTFT up to", "")
