"""A plan beside a live server: the same requests on both sides, and a status that says whether they agree."""

import json

import pytest

from penstock.cli.main import main
from penstock.cli.plan.verify import print_verdict
from tests.server.serving import serving

LOAD = (
    "--prompts",
    "20-40",
    "--answers",
    "4-12",
    "--rate",
    "20",
    "--hardware",
    "l4",
    "--weights",
    "bf16",
    "--kv",
    "bf16",
)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.toml"
    assert main(["plan", "smollm2-135m", *LOAD, "--emit", str(path)]) == 0
    return path


@pytest.mark.slow
def test_predicted_stands_beside_measured_and_the_status_says_whether_they_agree(capsys, plan):
    """A server of arithmetic, a hundred milliseconds a step, is not what was planned; and says so."""
    with serving(model="oracle:step_ms=100") as server:
        capsys.readouterr()
        status = main(["plan", "verify", server.url, "--plan", str(plan), "--num-requests", "20", "--json"])
    reported = json.loads(capsys.readouterr().out)
    assert status == 1
    assert not reported["is_within"]
    rows = {row["figure"]: row for row in reported["rows"]}
    assert {f"{name}_{share}" for name in ("ttft", "tpot", "e2e") for share in ("p50", "p95")} < rows.keys()
    assert rows["tpot_p50"]["measured"] >= 0.1
    assert rows["tpot_p50"]["predicted"] < 0.05
    assert rows["tpot_p50"]["error"] < -0.5


def test_nobody_listening_is_a_fault_not_a_proof(capsys, plan):
    capsys.readouterr()
    status = main(["plan", "verify", "http://127.0.0.1:9", "--plan", str(plan), "--num-requests", "10"])
    assert status != 0
    assert "Proved" not in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"penstock_plan": 1, "chosen": null}', '{"penstock_plan": 2}'])
def test_what_is_no_plan_is_refused(capsys, tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content)
    assert main(["plan", "verify", "--plan", str(path)]) == 2
    assert "is no plan" in capsys.readouterr().err


def test_a_plan_that_was_tampered_with_is_refused(capsys, plan, tmp_path):
    data = json.loads(plan.with_suffix(".json").read_text())
    del data["asked"]["load"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    assert main(["plan", "verify", "--plan", str(path)]) == 2
    assert "make the plan again" in capsys.readouterr().err


@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_a_range_over_moments_is_shown_only_where_there_is_one(capsys, spread):
    names = ("tpot_p50", "output_tokens_per_s", "good_fraction")
    rows = [
        {"figure": name, "predicted": 0.5, "interval": (0.5, 0.5 + spread), "measured": 0.5, "error": 0.0}
        for name in names
    ]
    reported = {"rate": 1.0, "verdict": "valid", "tolerance": 0.1, "is_within": True, "is_profiled": True, "rows": rows}
    print_verdict(reported, "tpot_p50")
    printed = capsys.readouterr().out
    assert ("nine times in ten" in printed) == (spread > 0.0)
    assert "good, % of requests" in printed
    assert "Proved" in printed
