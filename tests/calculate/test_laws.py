"""Laws of the calculators: one answer for command and page, every number with its origin, nothing that JSON cannot hold."""

import json
from dataclasses import asdict

import pytest

from penstock.cli.main import main
from penstock.errors import ConfigError
from penstock.tools.calculate.table import ALIASES, CALCULATORS, calculate, describe, find, inputs_of

EXAMPLES = {
    "throughput": {
        "model": "llama-3-70b",
        "hardware": "h100",
        "weights": "int4",
        "batch": 8,
        "context": 1000,
        "prompt": 500,
    },
    "kv": {"model": "deepseek-v3", "used": 50},
    "memory": {"model": "qwen3-30b-a3b", "hardware": "l4"},
    "users": {"model": "llama-3.1-8b", "hardware": "h100", "users": 100, "price": 2.5},
    "roofline": {"hardware": "h200", "rows": 4096, "columns": 4096, "seconds": 1e-4},
    "metrics": {"request": ["200:2200:50", "100:100:1"]},
    "prefix": {"model": "llama-3.1-8b", "hardware": "h100"},
    "transfer": {"model": "llama-3.1-8b", "hardware": "h100", "way": "interconnect"},
    "coldstart": {"model": "llama-3.1-8b"},
    "cost": {"hourly": 12, "tokens_per_s": 1000, "rate": 5, "api_in": 1, "api_out": 3, "requests": 1000},
}


def answer(name: str, **values: object) -> dict:
    return calculate(name, inputs_of(name, EXAMPLES.get(name, {}) | values))


@pytest.mark.parametrize("name", CALCULATORS)
def test_an_answer_is_plain_data_and_says_how_each_figure_is_made(name: str) -> None:
    found = json.loads(json.dumps(answer(name), allow_nan=False))
    assert found["figures"]
    assert all(figure["formula"] and figure["label"] for figure in found["figures"])
    assert all(quantity["origin"] for quantity in found["quantities"])
    assert found["values"].keys() == found["textbook"].keys() == {figure["key"] for figure in found["figures"]}


@pytest.mark.parametrize("name", CALCULATORS)
def test_command_and_page_give_the_same_answer(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = []
    for key, value in EXAMPLES.get(name, {}).items():
        for one in value if isinstance(value, list) else [value]:
            words.append(f"{key.replace('_', '-')}={one}")
    assert main(["calc", name, *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(answer(name)))


@pytest.mark.parametrize("name", CALCULATORS)
def test_a_page_can_draw_a_form_of_every_input(name: str) -> None:
    described = json.loads(json.dumps(describe(name)))
    assert all(one["help"] and one["kind"] for one in described["inputs"])
    defaults = {one["key"]: one["default"] for one in described["inputs"]}
    assert asdict(inputs_of(name, defaults)) == asdict(find(name).inputs())


def test_what_kernels_reach_is_slower_than_the_book() -> None:
    found = answer("throughput")
    assert found["values"]["step_s"] > found["textbook"]["step_s"]
    assert found["values"]["prefill_s"] == pytest.approx(found["textbook"]["prefill_s"] / 0.74)
    assert found["values"]["mfu"] < found["textbook"]["mfu"]


def test_symbols_given_are_taken_as_they_are() -> None:
    found = answer(
        "throughput", model="", hardware="", weights="bf16", parameters=70e9, context=0, bandwidth=2e12, flops=3e14
    )
    assert found["values"] == found["textbook"]


def test_a_model_by_name_is_its_published_shape_and_a_flag_wins_over_it() -> None:
    assert answer("kv", model="llama-3-70b")["values"]["bytes_per_token"] == 327_680
    assert answer("kv", model="llama-3-70b", kv_heads=64)["values"]["bytes_per_token"] == 8 * 327_680
    assert answer("kv", model="deepseek-v3")["values"]["bytes_per_token"] == 61 * (512 + 64) * 2


def test_of_experts_only_those_that_are_met_are_read() -> None:
    alone = answer("throughput", model="qwen3-30b-a3b", weights="bf16", batch=1)["values"]["weight_bytes"]
    many = answer("throughput", model="qwen3-30b-a3b", weights="bf16", batch=512)["values"]["weight_bytes"]
    assert alone < 8e9 < 60e9 < many


def test_a_queue_that_is_asked_for_more_than_it_can_has_no_latency() -> None:
    found = answer("queue", rate=11.0, capacity=10.0)
    assert found["values"]["time_s"] is None
    assert found["values"]["is_stable"] is False
    assert "unstable" in found["notes"][0]


@pytest.mark.parametrize(
    ("name", "values", "way_out"),
    [
        ("throughput", {"model": "", "parameters": None}, "parameters"),
        ("throughput", {"hardware": ""}, "--hardware"),
        ("throughput", {"batch": 0}, "above 0"),
        ("throughput", {"batch": 1.5}, "whole number"),
        ("throughput", {"hardwear": "h100"}, "did you mean hardware"),
        ("throughput", {"weights": "fp7"}, "one of"),
        ("kv", {"model": "llama-4"}, "llama"),
        ("cost", {"hourly": None, "api_in": None, "api_out": None}, "give"),
        ("transfer", {"hardware": "", "link": None}, "link"),
        ("metrics", {"request": ["1:2"]}, "TTFT:E2E:TOKENS"),
        ("batching", {"answers": "7y50"}, "commas"),
        ("sampling", {"probabilities": ".9,.9"}, "at most 1"),
        ("sampling", {"temperature": 0.0}, "above 0"),
        ("shed", {"queue": 2.0}, "0 to 1"),
        ("speculation", {"draft_parameters": 1e9}, "parameters"),
        ("prefix", {"model": "", "hardware": ""}, "token-ms"),
    ],
)
def test_an_error_names_the_way_out(name: str, values: dict, way_out: str) -> None:
    with pytest.raises(ConfigError, match=way_out):
        answer(name, **values)


def test_names_people_use_find_their_calculator(capsys: pytest.CaptureFixture[str]) -> None:
    for alias, name in ALIASES.items():
        assert find(alias) is CALCULATORS[name]
    assert main(["calc", "thruput"]) == 2
    assert "did you mean throughput" in capsys.readouterr().err
    assert main(["calc"]) == 0
    assert "throughput" in capsys.readouterr().out


@pytest.mark.parametrize("name", CALCULATORS)
def test_the_table_for_people_shows_every_figure(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = []
    for key, value in EXAMPLES.get(name, {}).items():
        for one in value if isinstance(value, list) else [value]:
            words.append(f"{key.replace('_', '-')}={one}")
    assert main(["calc", name, *words, "--textbook"]) == 0
    shown = capsys.readouterr().out
    assert all(figure["label"] in shown for figure in answer(name)["figures"])


@pytest.mark.parametrize(("context", "batch"), [(8000, 256), (8000, 66), (1000, 4096), (128_000, 5)])
def test_a_batch_whose_cache_does_not_fit_is_refused_and_the_largest_that_does_is_named(
    context: int, batch: int
) -> None:
    asked = {"model": "llama-3.1-8b", "hardware": "h100", "weights": "bf16", "context": context, "prompt": 0}
    found = answer("throughput", **asked, batch=batch)
    largest = found["values"]["largest_batch"]
    assert found["values"]["tokens_per_s"] is None
    assert not found["values"]["fits"]
    assert any(f"the largest that fits is {largest:,}" in note for note in found["notes"])
    assert answer("throughput", **asked, batch=largest)["values"]["fits"]
    assert not answer("throughput", **asked, batch=largest + 1)["values"]["fits"]
    assert (
        largest == answer("users", model="llama-3.1-8b", hardware="h100", context=context)["values"]["users_per_group"]
    )


def test_weights_that_do_not_fit_give_no_tokens_at_any_batch() -> None:
    found = answer("throughput", model="llama-3.1-70b", hardware="h100", weights="bf16", batch=1, context=0, prompt=0)
    assert found["values"]["tokens_per_s"] is None
    assert any("weights alone" in note for note in found["notes"])


def test_attention_does_the_same_work_with_less_traffic() -> None:
    found = answer("attention", tokens=4096, heads=64, head_dim=128, hardware="h100")["values"]
    assert found["work"] == 4 * 4096**2 * 128 * 64
    assert found["plain_intensity"] < found["ridge"] < found["tiled_intensity"] * 10
    assert found["tiled_intensity"] / found["plain_intensity"] == pytest.approx(found["saving"])
    assert found["tiled_s"] <= found["plain_s"]
