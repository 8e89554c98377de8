"""Every panel's and rule's query, run on a real Prometheus that scrapes a real router and real engines."""

import json
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager

import httpx
import pytest
import yaml

from tests.deploy.test_deploy import DEPLOY
from tests.machine import free_port
from tests.router.service import routing
from tests.server.serving import serving, user

WINDOW = "10s"
QUIET = ("penstock_cost_dollars_total", "penstock_gpu_", "UsageNotWritten", "gateway_denied")
"""Nothing of the kind happens here: an empty answer is the right one."""


@pytest.mark.slow
def test_what_dashboards_and_rules_ask_has_an_answer(tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    (tmp_path / "gateway.toml").write_text(
        f'database = "{tmp_path}/gateway.db"\n[prices."oracle:step_ms=5"]\noutput = 1.0\n'
    )
    settings = str(tmp_path / "gateway.toml")
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(model="oracle:step_ms=5")) for _ in range(2)]
        replicas = [word for server in servers for word in ("--replica", server.url)]
        service = stack.enter_context(routing(*replicas, "--gateway", settings))
        key = subprocess.run(
            [service.process.args[0], "-m", "penstock", "keys", "create", "--gateway", settings, "--tenant", "acme"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        port = stack.enter_context(prometheus(tmp_path, key, [service.url], [server.url for server in servers]))
        headers = {"authorization": f"Bearer {key}"}
        with service.http(headers=headers) as http, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            while http.get("/router/replicas").status_code != 200 or http.get("/readyz").status_code != 200:
                time.sleep(0.05)
            body = {"messages": user("hello " * 60), "max_tokens": 20, "stream": True, "temperature": 0}
            unanswered = queries()
            end_s = time.monotonic() + 60
            while unanswered and time.monotonic() < end_s:
                assert http.post("/v1/chat/completions", json=body).status_code == 200
                unanswered = [one for one in unanswered if not answered(client, one)]
            assert not unanswered


def queries() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "penstock.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"] if "record" in rule]
    windowed = [one.replace("$__rate_interval", WINDOW).replace("[5m]", f"[{WINDOW}]") for one in asked]
    return [one for one in windowed if not any(name in one for name in QUIET)]


def answered(client: httpx.Client, query: str) -> bool:
    answer = client.get("/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    found = answer["data"]["result"]
    return bool(found) and all(one["value"][1] != "NaN" for one in found)


def prometheus(folder, key: str, routers: list[str], engines: list[str]):
    """Running, with files of its own; yields its port."""
    port = free_port()

    def job(name: str, urls: list[str], credentials: dict) -> dict:
        targets = [url.removeprefix("http://") for url in urls]
        return {"job_name": name, "static_configs": [{"targets": targets}], **credentials}

    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus" / "rules.yml")],
        "scrape_configs": [
            job("penstock-router", routers, {"authorization": {"credentials": key}}),
            job("penstock-engine", engines, {}),
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    return _running(folder, port)


@contextmanager
def _running(folder, port: int):
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", *flags, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log, cwd=folder
        )
    try:
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                if httpx.get(f"http://127.0.0.1:{port}/-/ready").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()
