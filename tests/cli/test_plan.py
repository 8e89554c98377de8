"""Laws of `penstock plan`: it ends in a command that the commands understand, and says what it cannot launch."""

import json
import shlex
from dataclasses import asdict, replace

import pytest

from penstock.cli import serve
from penstock.cli.main import main
from penstock.cli.model.show_model import describe as shown
from penstock.cli.plan.command import demand_of
from penstock.cli.plan.config import ExpectedLoad, PlanGoal
from penstock.cli.plan.launch import command, gaps_of, nodes_of, standing
from penstock.cli.plan.model import describe
from penstock.cli.plan.report import _print_constraint, print_plan
from penstock.cli.plan.verify import candidate_of, config_of, predict, read_plan
from penstock.cli.simulate import command as simulate
from penstock.console import config_file
from penstock.console.args import build, parse
from penstock.errors import ConfigError, ModelFileError
from penstock.runtime.formats.hub import default_cache
from penstock.runtime.formats.source import parse_source
from penstock.runtime.formats.store import StoreEntry, commit, record_files, temporary_directory
from penstock.runtime.models import catalog, registry
from penstock.runtime.models.catalog import find as find_model
from penstock.runtime.models.spec import COUNTED_ALONE
from penstock.runtime.sizing import Sizing
from penstock.tools.cost.hardware import find as find_hardware
from penstock.tools.cost.layout import Layout
from penstock.tools.cost.precision import Precision
from penstock.tools.evaluate.kept import keep
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.money import HOURS_PER_MONTH
from tests.cli.test_simulate import SHAPE
from tests.cost.test_profile import PROFILE
from tests.planner.candidates import make_candidate

SMALL = (
    "--prompts",
    "20-60",
    "--answers",
    "3-12",
    "--hardware",
    "l4",
    "--rate",
    "100",
    "--weights",
    "bf16",
    "--kv",
    "fp8",
)


SIZING = Sizing(
    num_blocks=500, block_size=16, block_bytes=368_640, max_context=4096, weight_bytes=10**8, workspace_bytes=0,
    free_bytes=2**32,
)  # fmt: skip


def plan(capsys, *words):
    status = main(["plan", *words])
    return status, capsys.readouterr()


@pytest.fixture(scope="module")
def emitted(tmp_path_factory):
    """A plan on disk, and its data."""
    path = tmp_path_factory.mktemp("plans") / "plan.toml"
    prices = ("--price", "l4=0.5", "api-in=1", "api-out=2")
    assert main(["plan", "smollm2-135m", *SMALL, *prices, "--emit", str(path)]) == 0
    return path, json.loads(path.with_suffix(".json").read_text())


def read(command, path):
    return build(command.Config, config_file.read(command.Config, str(path)))


def test_serve_and_simulate_read_the_same_limits_from_the_file(emitted):
    path, data = emitted
    served, simulated = read(serve, path), read(simulate, path)
    chosen = data["chosen"]
    assert served.scheduler == simulated.scheduler
    assert served.scheduler.max_sequences == chosen["max_sequences"]
    assert served.scheduler.max_batch_tokens == chosen["max_batch_tokens"]
    assert served.cache.kv == simulated.cache.kv == chosen["kv"] == "fp8"


def test_the_command_and_the_file_ask_for_the_same_engine(emitted):
    path, data = emitted
    (line,) = data["chosen"]["launch"]
    program, command, *words = shlex.split(line)
    assert (program, command) == ("penstock", "serve")
    launched = build(serve.Config, parse(serve.Config, words).values)
    assert launched.model.model == "hf:HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (launched.cache, launched.scheduler) == (read(serve, path).cache, read(serve, path).scheduler)


def test_the_simulation_named_in_the_file_runs(capsys, emitted):
    path, _ = emitted
    line = next(line for line in path.read_text().splitlines() if "simulate" in line)
    assert main([*shlex.split(line.removeprefix("# penstock ")), "--num-requests", "20"]) == 0
    assert "TTFT" in capsys.readouterr().out


def test_what_a_plan_chose_can_be_made_anew(emitted):
    """As plan verify does it."""
    path, data = emitted
    assert read_plan(path) == data == read_plan(path.with_suffix(".json"))
    asked = config_of(data)
    demand = demand_of(asked.load, asked.goal)
    candidate = candidate_of(data, asked, demand)
    assert candidate.name == data["chosen"]["name"]
    assert candidate.max_sequences == data["chosen"]["max_sequences"]
    first, second = (predict(candidate, asked, demand, 50.0, 40) for _ in range(2))
    assert first == second
    assert [moment.num_requests for moment in first] == [40]


def test_a_plan_tells_all_it_promises(emitted):
    _, data = emitted
    assert {"ttft", "tpot", "e2e", "mean_queue_s", "preemptions_per_request"} <= data["at_load"].keys()
    assert data["chosen"]["dollars_per_million"].keys() == {"prompt", "answer", "blended"}
    assert data["self_host"]["break_even_requests"] is not None
    assert data["trust"]["step_times"] == "roofline"
    assert data["trust"]["is_extrapolating"]
    assert len(data["what_ifs"]) == 5
    assert data["constraint"]["words"]
    assert data["took"]["num_simulations"] > 0


def test_the_page_has_every_part(capsys):
    status, printed = plan(capsys, "smollm2-135m", *SMALL)
    assert status == 0
    for title in ("Fits: 1 x l4", "Capacity at the SLO", "Latency at 100", "Ranked", "What if", "What limits it",
                  "How far to trust it", "A month", "Launch"):  # fmt: skip
        assert title in printed.out
    assert "penstock serve" in printed.out


def test_every_option_of_the_ranking_has_its_command(capsys):
    """Those that no engine runs say what is missing; those that have to be made first say how."""
    status, printed = plan(capsys, "smollm2-135m", *SMALL[:-4], "--weights", "fp16,int4", "--kv", "bf16,fp8", "--json")
    assert status == 0
    data = json.loads(printed.out)
    assert len(data["options"]) > 1
    assert any(option["gaps"] for option in data["options"])
    made = next(option for option in data["options"] if option["weights"] == "int4" and not option["gaps"])
    assert made["launch"][0] == (
        "penstock quantize hf:HuggingFaceTB/SmolLM2-135M-Instruct --to int4 --out SmolLM2-135M-Instruct-int4"
    )
    assert made["launch"][1].startswith("penstock serve --weights packed")
    assert made["launch"][1].endswith(" SmolLM2-135M-Instruct-int4")
    print_plan(data)
    launch = capsys.readouterr().out.partition("Launch\n")[2]
    for number, option in enumerate(data["options"], 1):
        if option["name"] != data["chosen"]["name"]:
            assert f"\n{number}  {option['launch'][0]}" in launch
        else:
            assert launch.splitlines()[1] == option["launch"][0]


def test_a_plan_knows_the_measured_quality_of_formats_that_were_reported(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = find_model("smollm2-135m")
    report = {"format": "int4", "method": "gptq", "after": {"bits_per_weight": 4.3}, "divergence": {"kl": 0.02},
              "comparisons": [{"measure": "perplexity", "change": 0.031}]}  # fmt: skip
    keep(report, (spec.num_parameters, spec.num_layers, spec.hidden_size, spec.vocab_size), default_cache())
    printed = plan(capsys, "smollm2-135m", *SMALL[:-4], "--weights", "bf16,int4")[1].out
    assert "quality     int4: perplexity +3.1 %, KL 0.0200 nats by gptq, as reported" in printed


def test_a_month_is_of_as_many_replicas_as_its_use_asks_for(capsys):
    """Not of as many as carry the load at its height."""
    words = ("--price", "l4=0.5", "utilization=0.01", "--json")
    data = json.loads(plan(capsys, "smollm2-135m", *SMALL, *words)[1].out)
    month = data["self_host"]
    assert month["num_replicas"] > data["chosen"]["num_replicas"]
    assert month["gpu_dollars"] == month["num_replicas"] * 0.5 * HOURS_PER_MONTH
    print_plan(data)
    assert f"for {month['num_replicas']} replicas, each used at no more than 1 % of capacity" in capsys.readouterr().out


def test_a_layout_that_no_engine_runs_is_said_in_words(capsys):
    words = (
        "--prompts",
        "20",
        "--answers",
        "4",
        "--hardware",
        "h200",
        "--rate",
        "1",
        "--weights",
        "fp8",
        "--kv",
        "fp8",
    )
    status, printed = plan(capsys, "deepseek-v3", *words, "--json")
    assert status == 0
    chosen = json.loads(printed.out)["chosen"]
    assert chosen["devices_per_replica"] == 8
    assert [
        words for words in ("this model has MLA", "experts of a mixture", "latents") if words in str(chosen["gaps"])
    ] == [
        "this model has MLA",
        "experts of a mixture",
        "latents",
    ]
    assert all(line.startswith("not yet: ") for line in chosen["launch"])


def test_what_fits_nowhere_is_told_with_the_ledger(capsys):
    status, printed = plan(capsys, "llama-3.1-405b", "--hardware", "l4")
    assert status == 1
    assert "Nothing fits" in printed.out
    assert "no memory is left for the KV cache" in printed.out


@pytest.mark.parametrize(
    ("gain", "words"),
    [(0.25, "--x 1 gives +25 %"), (-0.06, "--x 1 does not help: it gives -6 %"), (0.0, "changes nothing")],
)
def test_a_remedy_that_makes_it_worse_is_not_offered_as_one(capsys, gain, words):
    _print_constraint({"words": "The time of a step", "remedy": "--x 1", "gain": gain})
    assert words in capsys.readouterr().out


def test_a_directory_and_a_config_are_models(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    by_folder, by_file = describe(str(tmp_path)), describe(str(tmp_path / "config.json"))
    assert by_folder == by_file
    assert by_folder.spec.num_layers == 2
    assert by_folder.source == str(tmp_path)


def test_a_shape_that_is_served_without_weights_is_planned_and_shown_by_the_same_name():
    assert describe("dummy:llama-3.1-8b").spec == describe("llama-3.1-8b").spec
    assert describe("dummy:llama-3.1-8b").source == "dummy:llama-3.1-8b"
    assert shown("dummy:llama-3.1-8b") == shown("llama-3.1-8b")
    with pytest.raises(ConfigError, match="without weights"):
        parse_source("dummy:llama-3.1-8b")


def test_a_model_that_was_fetched_is_planned_by_the_name_it_is_served_by(tmp_path, monkeypatch):
    """As the error for one that was not tells: `penstock pull`, and then the same words again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("default", "hf:org/name"):
        with pytest.raises(ConfigError, match=f"penstock pull {name}"):
            describe(name)
        cache = default_cache()
        root = cache / "snapshots" / "name"
        root.mkdir(parents=True, exist_ok=True)
        (root / "config.json").write_text(json.dumps(SHAPE))
        files = record_files(root, ["config.json"], lambda stage, done, total: None)
        with temporary_directory(cache) as scratch:
            (scratch / "staged").mkdir()
            commit(cache, scratch / "staged", StoreEntry(str(parse_source(name)), root, "", files))
        assert describe(name).spec == describe(str(root)).spec
        assert describe(name).source == name


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("llama-3.1-8x",), "did you mean llama-3.1-8b"),
        (("hf:org/name",), "penstock pull"),
        (("llama-3.1-8b", "--hardware", "h100-smx"), "did you mean h100-sxm"),
        (("llama-3.1-8b", "--hardware", ","), "--hardware is empty"),
        (("llama-3.1-8b", "--price", "h100"), "DEVICE=DOLLARS"),
        (("llama-3.1-8b", "--price", "h100=nan"), "DEVICE=DOLLARS"),
        (("llama-3.1-8b", "--weights", "int3"), "--weights takes"),
        (("llama-3.1-8b", "--slo", "ttft=3"), "--slo"),
        (("llama-3.1-8b", "attainment=0.1"), "0.5 to 1"),
        (("llama-3.1-8b", "--rate", "0"), "above 0"),
        (("llama-3.1-8b", "--rate", "nan"), "--rate"),
        (("llama-3.1-8b", "--trace", "missing.jsonl"), "cannot read the trace"),
        (("llama-3.1-8b", "--profile", "missing.json"), "cannot read"),
        (("llama-3.1-8b", "api-in=1"), "api-out"),
        (("llama-3.1-8b", "max-devices=0"), "max-devices"),
        (("verify", "--plan", "missing.toml"), "cannot read"),
        (("verify",), "no plan was given"),
    ],
)
def test_bad_options_are_refused_with_a_way_out(capsys, words, hint):
    status, printed = plan(capsys, *words)
    assert status == 2
    assert hint in printed.err
    assert printed.out == ""


def test_a_profile_stands_for_the_machine_it_was_measured_on(capsys, tmp_path):
    """Blocks and step times are the profile's own, whatever devices there are by name."""
    path = tmp_path / "profile.json"
    proof = {"ttft_p50_s": {"error": -0.1}, "output_tokens_per_s": {"error": 0.05}}
    path.write_text(replace(PROFILE, vocab_size=49_152, sizing=asdict(SIZING), back_test=proof).to_json())
    words = ("--prompts", "20-60", "--answers", "3-12", "--rate", "5", "--slo", "ttft<10s", "--price", "this-machine=1")
    status, printed = plan(capsys, "smollm2-135m", "--profile", str(path), *words, "--json")
    assert status == 0
    data = json.loads(printed.out)
    assert data["chosen"]["hardware"] == "this-machine"
    assert data["chosen"]["fit"]["num_tokens"] == SIZING.num_cached_tokens
    assert data["chosen"]["dollars_per_hour"] == data["chosen"]["num_replicas"]
    assert data["trust"]["step_times"] == "measured"
    emitted = tmp_path / "plan.toml"
    _, printed = plan(capsys, "smollm2-135m", "--profile", str(path), *words, "--emit", str(emitted))
    assert "TTFT p50: -10.0 %" in printed.out
    assert "output tokens/s: +5.0 %" in printed.out
    line = next(line for line in emitted.read_text().splitlines() if "simulate" in line)
    assert main([*shlex.split(line.removeprefix("# penstock ")), "--num-requests", "5"]) == 0
    assert f"{SIZING.num_blocks:,} blocks" in capsys.readouterr().out, "the engine that was measured is simulated"
    status, printed = plan(capsys, "llama-3.1-8b", "--profile", str(path), *words)
    assert status == 2
    assert "another model" in printed.err


def test_a_model_over_several_devices_launches_and_its_cluster_file_reads_back(tmp_path):
    from penstock.cli.fleet import up
    from penstock.config import ModelConfig

    shape = SHAPE | {
        "num_hidden_layers": 48,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape | {"num_key_value_heads": 8, "vocab_size": 128256}))
    path = tmp_path / "plan.toml"
    words = ("--hardware", "l40s", "--rate", "0.2", "--prompts", "50", "--answers", "20", "--weights", "bf16")
    assert main(["plan", str(tmp_path), *words, "--emit", str(path)]) == 0
    chosen = json.loads(path.with_suffix(".json").read_text())["chosen"]
    assert chosen["devices_per_replica"] > 1
    assert not chosen["gaps"]
    beside = path.with_suffix(".cluster.toml")
    config = up._with_file(up.Config(model=ModelConfig(str(beside))))
    assert config.model.model == str(tmp_path)
    assert config.parallel.tensor * config.parallel.pipeline == chosen["devices_per_replica"]
    assert config.cluster.min_replicas == max(chosen["num_replicas"], 1)


def test_stages_on_several_machines_are_launched_on_each():
    """Sixteen devices of machines of eight: two stages of a tensor group each."""
    candidate = Candidate(
        find_model("llama-3.1-70b"), find_hardware("h100"), Layout(8, 2), "bf16", "bf16", Precision(), max_context=4096
    )
    assert gaps_of(candidate) == ()
    assert "--nodes 2 --rendezvous HOST:29500" in command(candidate, "MODEL")
    uneven = replace(candidate, layout=Layout(8, 3))
    assert nodes_of(uneven) == 3
    assert gaps_of(uneven) == ()
    assert gaps_of(replace(candidate, layout=Layout(4, 3))) == (
        "TP4 x PP3: machines of 8 devices have whole stages each, as many on each",
    )


def test_users_become_the_rate_at_which_they_ask_if_they_wait_as_long_as_allowed():
    """N = X (R + Z), with R the longest the SLO allows."""
    load = ExpectedLoad(users=100, think_s=10.0, prompts="50", answers="101")
    demand = demand_of(load, PlanGoal("ttft<1s,tpot<50ms"))
    assert demand.rate == pytest.approx(100 / (10.0 + 1.0 + 100 * 0.05))
    with pytest.raises(ConfigError, match="think"):
        demand_of(ExpectedLoad(users=100, prompts="50", answers="1"), PlanGoal("tpot<50ms"))


def test_a_layout_over_several_gpus_is_called_untried_and_every_format_asked_for_is_ranked(capsys) -> None:
    words = ("--prompts", "20-60", "--answers", "3-12", "--rate", "20", "--hardware", "h100", "max-devices=2")
    status, out = plan(capsys, "llama-3.1-8b", *words, "--weights", "bf16,fp8,int8", "--kv", "bf16", "--json")
    assert status == 0
    options = json.loads(out.out)["options"]
    assert {one["weights"] for one in options} == {"bf16", "fp8", "int8"}
    candidates = {one["name"]: one for one in options}
    for one in candidates.values():
        is_several = one["devices_per_replica"] > 1
        expected = "not yet" if one["gaps"] else "untried on several GPUs" if is_several else "yes"
        assert one["runs_today"] == expected
    several = Candidate(
        find_model("llama-3.1-8b"), find_hardware("h100"), Layout(tensor=2), "bf16", "bf16", Precision(), 64, 1024, 4096
    )
    assert standing(several, gaps_of(several)) == "untried on several GPUs"
    assert standing(replace(several, layout=Layout()), ()) == "yes"
    on_cpu = replace(several, hardware=replace(several.hardware, kind="cpu"))
    assert standing(on_cpu, ()) == "yes"


@pytest.mark.parametrize(
    ("model", "weights", "kv", "gap"),
    [
        ("llama-3.1-8b", "fp8", "fp8", ""),
        ("qwen3-30b-a3b", "bf16", "fp8", ""),
        ("qwen3-30b-a3b", "fp8", "bf16", "fp8 weights: experts of a mixture"),
        ("qwen3-30b-a3b", "int4", "bf16", "int4 weights: experts of a mixture"),
        ("granite-4.0-h-micro", "fp8", "fp8", ""),
        ("granite-4.0-h-micro", "int4", "bf16", "quantize writes models of grouped-query attention alone"),
        ("llama-4-scout", "bf16", "bf16", "Llama 4 is not computed yet"),
        ("deepseek-v2-lite", "bf16", "bf16", ""),
        ("deepseek-v2-lite", "bf16", "fp8", "fp8 KV: latents are kept in 16 bits"),
    ],
)
def test_what_the_engine_does_not_do_is_a_gap_and_what_it_does_is_none(model, weights, kv, gap):
    found = gaps_of(make_candidate(model, weights=weights, kv=kv))
    assert (gap in "; ".join(found)) if gap else found == ()


@pytest.mark.parametrize("model", catalog.CONFIGS)
def test_a_known_model_has_recipes_or_is_said_not_to_run(model):
    spec = find_model(model)
    try:
        registry.read_config(catalog.CONFIGS[model])
        is_read = True
    except ModelFileError:
        is_read = False
    assert is_read == (spec.architecture not in COUNTED_ALONE)
