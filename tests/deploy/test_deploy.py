"""Files to deploy with are checked as their readers read them: Helm renders, Kubernetes' schemas hold, promtool agrees."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import msgspec
import pytest
import yaml

from penstock.service.gateway.settings import GatewaySettings
from tests.server.serving import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "penstock"
HELM = Path(sys.executable).parent / "helm"
VARIANTS = {
    "plain": [],
    "hpa-gpu-gateway": [
        "--set=autoscaling.kind=hpa",
        "--set=engine.gpus=1",
        '--set-string=gateway=database = "/data/gateway.db"',
    ],
    "tls": ["--set=tls.engineSecret=engine-tls", "--set=tls.routerSecret=router-tls", "--set=tls.mutual=true"],
    "keda-zero": ["--set=autoscaling.kind=keda", "--set=scaleToZero.enabled=true"],
}
OTHERS = ("ScaledObject", "HTTPScaledObject")
"""Kinds of other makers, which Kubernetes' own schemas do not know."""


def rendered(variant: str) -> str:
    command = [HELM, "template", "penstock", CHART, *VARIANTS[variant]]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def objects(variant: str) -> list[dict]:
    return [one for one in yaml.safe_load_all(rendered(variant)) if one]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_chart_renders_what_the_golden_file_says(variant):
    golden = DEPLOY / "golden" / f"{variant}.yaml"
    assert rendered(variant) == golden.read_text(), f"render it anew: helm template ... > {golden.relative_to(ROOT)}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_fits_kubernetes_own_schema(variant):
    found = objects(variant)
    for one in found:
        if one["kind"] not in OTHERS:
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    kinds = {one["kind"] for one in found}
    assert {"Deployment", "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= kinds
    assert variant != "keda-zero" or set(OTHERS) <= kinds


@pytest.mark.parametrize("variant", VARIANTS)
def test_pods_are_small_of_rights_and_have_time_to_drain(variant):
    for one in objects(variant):
        if one["kind"] not in ("Deployment", "StatefulSet"):
            continue
        pod = one["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        (drain,) = [word for word in container["args"] if word.startswith("--drain-s=")]
        assert pod["terminationGracePeriodSeconds"] >= float(drain.partition("=")[2]) + 10
        assert "/livez" in str(container["livenessProbe"]), "a busy or loading engine is never killed for it"
        assert "/readyz" in str(container["readinessProbe"])
        assert "limits" in container["resources"]


@pytest.mark.parametrize("wrong", ["tls.mutual=true", "scaleToZero.enabled=true,tls.routerSecret=r"])
def test_values_that_contradict_each_other_are_refused_in_a_sentence(wrong):
    command = [HELM, "template", "penstock", CHART, f"--set={wrong}"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "tls.routerSecret" in refused.stderr


def test_alert_rules_pass_promtool():
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    subprocess.run(["promtool", "check", "rules", DEPLOY / "prometheus" / "rules.yml"], check=True, capture_output=True)


def test_rules_and_panels_ask_for_metrics_that_are_there():
    source = "".join(path.read_text() for path in (ROOT / "penstock").rglob("*.py"))
    exposed = set(re.findall(r'"((?:penstock_|vllm:)\w+)"', source))
    exposed |= {f"penstock_gpu_{name}" for name in re.findall(r'yield \(?\s*"(\w+)"', source)}  # gauges of NVML
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    dashboard = json.loads((DEPLOY / "grafana" / "penstock.json").read_text())
    queries = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    queries += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for query in queries:
        for name in re.findall(r"(?:penstock_|vllm:)\w+", query):
            bare = re.sub(r"_(bucket|total|count|sum)$", "", name)
            assert {name, bare} & exposed, f"{name} is not exposed; asked for by {query}"


def test_the_compose_file_and_its_gateway_read():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    published = [port for one in compose["services"].values() for port in one.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
    raw = tomllib.loads((DEPLOY / "gateway.toml").read_text())
    msgspec.convert(raw, GatewaySettings)


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.cuda"])
def test_images_run_as_nobody_in_particular_and_are_pinned(name):
    text = (DEPLOY / "docker" / name).read_text()
    assert re.search(r"^USER \d+$", text, re.MULTILINE)
    assert all(re.search(r":\d+\.\d+", line) for line in text.splitlines() if line.startswith("FROM"))
    assert "-c constraints.txt" in text
