"""Laws of the linter: each mistake is found where it is made, and only there."""

import json
import re
from importlib import import_module

import pytest

from penstock.cli.lint import READERS
from penstock.cli.main import COMMANDS, main
from penstock.console.flags import flags_of
from penstock.tools.advise.lint import FINDINGS, RULES, Setup, lint, setup_of

SOUND = {
    "model": "llama-3.1-8b",
    "hardware": "h100",
    "weights": "bf16",
    "kv": "fp8",
    "memory_fraction": 0.88,
    "max_batch_tokens": 1024,
    "max_context": 8192,
    "context_p99": 6000,
    "max_sequences": 64,
    "ttft_s": 0.5,
    "tpot_s": 0.05,
    "tensor": 1,
    "replicas": 4,
    "policy": "least-pending",
    "lengths": "mixed",
    "draft_tokens": 4,
    "acceptance": 0.7,
    "speculate_up_to": 16,
    "draft_tokenizer": "same",
    "prefix_caching": True,
    "shared_prefix": 2000,
    "kv_bound": True,
    "scale_by": "pending",
    "scale_to": 8,
    "scale_from": 1,
    "readiness": "token",
    "liveness_s": 120,
    "load_s": 60,
    "longest_step_s": 1,
    "max_tokens": 500,
    "client_timeout_s": 60,
    "e2e_p99_s": 30,
    "retries": 2,
    "honours_retry_after": True,
    "sized_by": "total",
    "kv_formula": "kv_heads",
    "flops": "dense",
}
MISTAKES = {
    "memory-fraction": {"memory_fraction": 0.95},
    "batch-tokens": {"max_batch_tokens": 32_768},
    "context": {"max_context": None},
    "sequences": {"max_sequences": 512},
    "tensor": {"tensor": 16},
    "speculation-switch": {"speculate_up_to": None},
    "speculation-tokenizer": {"draft_tokenizer": "other"},
    "speculation-acceptance": {"acceptance": 0.3},
    "prefix-off": {"prefix_caching": False},
    "prefix-order": {"prompt_begins_with": "the date"},
    "kv": {"kv": "bf16"},
    "policy": {"policy": "round-robin"},
    "scale-signal": {"scale_by": "utilisation"},
    "scale-zero": {"scale_from": 0},
    "readiness": {"readiness": "tcp"},
    "liveness-load": {"liveness_s": 30, "longest_step_s": 1},
    "liveness-step": {"liveness_s": 90, "load_s": 60, "longest_step_s": 100},
    "client-tokens": {"max_tokens": None},
    "client-timeout": {"client_timeout_s": 20},
    "client-retries": {"honours_retry_after": False},
    "sizing-weights": {"sized_by": "weights"},
    "sizing-heads": {"kv_formula": "heads"},
    "sizing-sparse": {"flops": "sparse"},
}
MORE = [
    ("batch-tokens", {"max_batch_tokens": 8192}),
    ("context", {"max_context": 100_000}),
    ("kv", {"hardware": "a100", "max_batch_tokens": 256}),
    ("tensor", {"tensor": 4, "hardware": "l40s", "model": None}),
    ("tensor", {"tensor": 8, "model": "llama-3.2-1b"}),
    ("sequences", {"model": None, "max_sequences": 300}),
]


def found(**changes: object) -> list[str]:
    return [one.id for one in lint(setup_of(SOUND | changes))]


def test_a_sound_setup_has_none_and_what_is_not_known_is_not_judged() -> None:
    assert found() == []
    assert lint(Setup()) == []


def test_every_rule_has_its_mistake() -> None:
    assert set(MISTAKES) == {rule.id for rule in RULES} == set(FINDINGS)


@pytest.mark.parametrize(("rule", "changes"), [*MISTAKES.items(), *MORE])
def test_a_mistake_is_found_and_no_other(rule: str, changes: dict) -> None:
    assert found(**changes) == [rule]


def test_the_command_reads_the_files_of_other_commands(tmp_path, capsys) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'model = "llama-3.1-8b"\nmax-context = 8192\n[goal]\nslo = "ttft<500ms,tpot<50ms"\n'
        '[machines]\nhardware = "h100"\nreplicas = 4\npolicy = "round-robin"\n[load]\nprompts = "100-4000"\n'
        "[cache]\nmemory-fraction = 0.97\n"
    )
    assert main(["lint", str(path), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in data["findings"]] == ["memory-fraction", "policy"]
    assert main(["lint", str(path)]) == 1
    assert "memory_fraction" in capsys.readouterr().out
    path.write_text("max-sequences = 32\n")
    assert main(["lint", str(path)]) == 0
    assert "none of the common mistakes" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["= 3", "[1]", 'memory-fraction = "much"'])
def test_a_file_that_cannot_be_read_says_so(text: str, tmp_path, capsys) -> None:
    path = tmp_path / ("setup.json" if text == "[1]" else "setup.toml")
    path.write_text(text)
    assert main(["lint", str(path)]) == 2
    assert "penstock: error" in capsys.readouterr().err


WRITTEN = [
    ["serve"],
    ["serve", "--speculate", "auto"],
    ["serve", "--speculate", "model", "--draft-model", "default", "--api-key", "a-long-key"],
    ["simulate", "--model", "llama-3.1-8b"],
    ["simulate", "--model", "llama-3.1-8b", "--speculate", "auto", "--tensor", "2"],
    ["plan", "llama-3.1-8b", "--hardware", "h100,h200"],
    ["bench"],
    ["route", "--replica", "http://127.0.0.1:1"],
]


@pytest.mark.parametrize("command", WRITTEN, ids=" ".join)
def test_every_file_that_a_command_prints_can_be_examined(command: list[str], tmp_path, capsys) -> None:
    assert main([*command, "--print-config"]) == 0
    path = tmp_path / "printed.toml"
    path.write_text(capsys.readouterr().out)
    assert main(["lint", str(path), "--json"]) in (0, 1)
    data = json.loads(capsys.readouterr().out)
    assert {one["id"] for one in data["findings"]} <= {"context", "sequences", "batch-tokens"}


@pytest.mark.parametrize(
    ("text", "is_fixed"),
    [
        ('speculate = "auto"', False),
        ('speculate = "off"\ndraft-tokens = 4', False),
        ('speculate = "4"', True),
        ('speculate = "ngram"\ndraft-tokens = 4', True),
        ("speculate = 4\nspeculate-up-to = 16", False),
    ],
)
def test_only_a_fixed_number_of_drafts_lacks_an_off_switch(text: str, is_fixed: bool, tmp_path, capsys) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    assert main(["lint", str(path), "--json"]) == (1 if is_fixed else 0)
    found = [one["id"] for one in json.loads(capsys.readouterr().out)["findings"]]
    assert found == (["speculation-switch"] if is_fixed else [])


def test_a_misspelt_key_is_found_and_the_nearest_is_named(tmp_path, capsys) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("[cache]\nmemory-fracton = 0.5\nnonsense-of-mine = 1\n")
    assert main(["lint", str(path), "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)["findings"]
    assert first["id"] == second["id"] == "unknown-key"
    assert first["setting"] == "memory-fracton"
    assert "memory-fraction" in first["remedy"]
    assert "--help" in second["remedy"]


def test_every_flag_that_a_remedy_names_is_one_of_the_commands() -> None:
    known = {f"--{flag.switch}" for name in READERS for flag in flags_of(import_module(COMMANDS[name].module).Config)}
    named = {word for rule in RULES for word in re.findall(r"--[a-z-]+", rule.remedy)}
    assert named <= known
