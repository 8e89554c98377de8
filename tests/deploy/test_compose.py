"""What compose would start, started here: the same files, commands and variables, as processes of this machine."""

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from tests.deploy.test_deploy import DEPLOY
from tests.machine import PATIENCE_S, free_port
from tests.server.serving import ROOT

KEYS = {
    "PENSTOCK_REPLICA_KEY": "a-key-between-them",
    "PENSTOCK_METRICS_KEY": "a-key-for-numbers",
    "PENSTOCK_CERTS": "/certs",
}


def composed(*more: str) -> dict:
    """The compose file, and those laid over it, with variables filled in: as compose does."""
    first, *others = (
        yaml.safe_load(re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: KEYS[found[1]], (DEPLOY / name).read_text()))
        for name in ("compose.yaml", *more)
    )
    for other in others:
        for name, service in other["services"].items():
            under = first["services"][name]
            volumes = [*under.get("volumes", ()), *service.get("volumes", ())]
            first["services"][name] = under | service | {"volumes": volumes}
    return first


@contextmanager
def process(command: list[str], environment: dict[str, str], log):
    with log.open("w") as file:
        started = subprocess.Popen(
            [sys.executable, "-m", "penstock", *command], cwd=ROOT, stdout=file, stderr=file, env=environment
        )
    try:
        yield started
    finally:
        started.terminate()
        started.wait(60)


@pytest.mark.parametrize("more", [(), ("compose.tls.yaml",)], ids=["plain", "tls"])
def test_every_variable_file_and_host_of_the_compose_file_is_there(more):
    compose = composed(*more)
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (DEPLOY / source).exists(), (name, source)
        for secret in service.get("secrets", ()):
            assert compose["secrets"][secret]["environment"] in KEYS
    (flag,) = compose["services"]["prometheus"]["command"]
    jobs = yaml.safe_load((DEPLOY / "prometheus" / Path(flag).name).read_text())["scrape_configs"]
    for job in jobs:
        folder, _, secret = job["authorization"]["credentials_file"].rpartition("/")
        assert (folder, secret in compose["services"]["prometheus"]["secrets"]) == ("/run/secrets", True)
        for target in job["static_configs"][0]["targets"]:
            assert target.split(":")[0] in compose["services"]
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


@pytest.mark.slow
def test_what_compose_starts_answers_counts_and_is_scraped(tmp_path):
    """The default model behind the shipped gateway: asked by its name, as `default` and without one, each has its price."""
    services = composed()["services"]
    settings = tmp_path / "gateway.toml"
    shipped = (DEPLOY / "gateway.toml").read_text()
    settings.write_text(shipped.replace("/data/", f"{tmp_path}/"))
    ports = {"engine-0": free_port(), "engine-1": free_port(), "router": free_port()}

    def command(name: str) -> list[str]:
        words = " ".join(services[name]["command"])
        words = words.replace("/etc/penstock/gateway.toml", str(settings)).replace(
            "--port 8000", f"--port {ports[name]}"
        )
        for other, port in ports.items():
            words = words.replace(f"http://{other}:8000", f"http://127.0.0.1:{port}")
        return [*words.split(), *(["--port", str(ports[name])] if name == "router" else [])]

    with ExitStack() as stack:
        for name in ports:
            environment = {**os.environ, **services[name].get("environment", {})}
            stack.enter_context(process(command(name), environment, tmp_path / f"{name}.log"))
        made = [sys.executable, "-m", "penstock", "keys", "create", "--gateway", str(settings), "--tenant", "acme"]
        key = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        url = f"http://127.0.0.1:{ports['router']}"
        http = stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_S))
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            try:
                if http.get("/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        client = {"authorization": f"Bearer {key}"}
        (served,) = {one["id"] for one in http.get("/v1/models", headers=client).json()["data"]}
        assert f'[prices."{served}"]' in shipped, "the shipped price is the served model's"
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
        for more in ({"model": served}, {"model": "default"}, {}):
            answer = http.post("/v1/chat/completions", json=body | more, headers=client)
            assert answer.status_code == 200, answer.text
        router, engine = {"host": "router:8080"}, {"host": "engine-0:8000"}
        while True:
            keyed = {"authorization": f"Bearer {KEYS['PENSTOCK_METRICS_KEY']}"}
            numbers = http.get("/metrics", headers=keyed | router)
            assert numbers.status_code == 200
            cost = re.search(r"^penstock_gateway_cost_dollars_total\{.*?\} (\S+)$", numbers.text, re.MULTILINE)
            if cost is not None and float(cost[1]) > 0:
                break
        assert "acme" not in http.get("/metrics", headers=client).text, "tenants are told to nobody but the operator"
        keyed = {"authorization": f"Bearer {KEYS['PENSTOCK_REPLICA_KEY']}"}
        scraped = httpx.get(f"http://127.0.0.1:{ports['engine-0']}/metrics", headers=keyed | engine)
        assert scraped.status_code == 200
        assert "has no price" not in (tmp_path / "router.log").read_text()
