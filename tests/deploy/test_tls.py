"""The shipped files with certificates, started here: their commands, their health checks, TLS on every leg in every dialect."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.authority import Authority
from tests.deploy.test_compose import composed, process
from tests.deploy.test_deploy import DEPLOY, objects
from tests.machine import PATIENCE_S, free_port, wait_until
from tests.server.serving import ROOT, user

MODEL = "oracle:step_ms=1"
KEY = "a-key-out-of-a-secret"
LENGTH = {"max_tokens": 8}
CHAT = {"messages": user("hello"), "model": MODEL}
ASKED = {
    "/v1/chat/completions": (CHAT | LENGTH, "[DONE]"),
    "/v1/messages": (CHAT | LENGTH, "message_stop"),
    "/v1/responses": ({"input": "hello", "model": MODEL, "max_output_tokens": 8}, "response.incomplete"),
    "/api/chat": (CHAT | {"options": {"num_predict": 8}}, '"done":true'),
}


class Deployed:
    """Processes of the shipped commands, on ports and with files of this machine."""

    def __init__(self, stack: ExitStack, folder: Path, places: dict[str, str]) -> None:
        """`places`: what the files say, and what that is here."""
        self._stack = stack
        self._folder = folder
        self._places = places

    def here(self, text: str) -> str:
        for there, here in self._places.items():
            text = text.replace(there, here)
        return text

    def start(self, name: str, words: list[str], environment: dict[str, str]) -> None:
        command = [self.here(word) for word in words]
        if command[0] == "serve":
            command = ["serve", MODEL, *(word for word in command[1:] if word.startswith("--"))]
        log = self._folder / f"{name}.log"
        running = self._stack.enter_context(process(command, {**os.environ, **environment}, log))
        assert running.poll() is None, log.read_text()

    def await_health(self, code: str) -> None:
        """By the container's own check."""
        command = [sys.executable, "-c", self.here(code)]
        wait_until(lambda: subprocess.run(command, capture_output=True).returncode == 0)


def is_answered(authority: Authority, port: int, key: str) -> None:
    headers = {"authorization": f"Bearer {key}"}
    url = f"https://127.0.0.1:{port}"
    with httpx.Client(base_url=url, verify=authority.client(), headers=headers, timeout=PATIENCE_S) as http:
        wait_until(lambda: is_ready(http))
        for path, (body, end) in ASKED.items():
            whole = http.post(path, json=body | {"stream": False})
            assert whole.status_code == 200, (path, whole.text)
            streamed = http.post(path, json=body | {"stream": True})
            assert end in streamed.text, (path, streamed.text)


def is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def is_deaf(authority: Authority, port: int) -> None:
    """To whoever shows no certificate."""
    with pytest.raises(httpx.TransportError):
        httpx.get(f"https://127.0.0.1:{port}/livez", verify=authority.client())


def test_what_compose_starts_with_certificates_answers_over_tls(tmp_path):
    services = composed("compose.tls.yaml")["services"]
    authority = Authority(tmp_path)
    authority.sign("engine")
    authority.sign("router")
    authority.file.rename(authority.file.with_name("ca.pem"))
    authority.file = authority.file.with_name("ca.pem")
    settings = tmp_path / "gateway.toml"
    settings.write_text((DEPLOY / "gateway.toml").read_text().replace("/data/", f"{tmp_path}/"))
    made = [sys.executable, "-m", "penstock", "keys", "create", "--gateway", str(settings), "--tenant", "acme"]
    key = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    engine, router = free_port(), free_port()
    places = {
        "/certs/": f"{tmp_path}/",
        "/etc/penstock/gateway.toml": str(settings),
        "engine-0:8000": f"127.0.0.1:{engine}",
        "--port=8000": f"--port={engine}",
        "127.0.0.1:8000": f"127.0.0.1:{engine}",
        "127.0.0.1:8080": f"127.0.0.1:{router}",
    }
    with ExitStack() as stack:
        deployed = Deployed(stack, tmp_path, places)
        deployed.start("engine", services["engine-0"]["command"], services["engine-0"]["environment"])
        words = [word for word in services["router"]["command"] if "engine-1" not in word]
        deployed.start("router", [*words, f"--port={router}"], services["router"]["environment"])
        for name in ("engine-0", "router"):
            deployed.await_health(services[name]["healthcheck"]["test"][-1])
        is_answered(authority, router, key)
        is_deaf(authority, engine)


def test_what_the_chart_starts_with_certificates_answers_over_tls(tmp_path):
    found = objects("tls")
    (replicas,) = (one["data"]["replicas"] for one in found if one["kind"] == "ConfigMap")
    pods = {one["kind"]: one["spec"]["template"]["spec"] for one in found if "template" in one.get("spec", {})}
    authority = Authority(tmp_path)
    engine, router = free_port(), free_port()
    places = {"127.0.0.1:8000": f"127.0.0.1:{engine}", "--port=8000": f"--port={engine}", "8080": str(router)}
    (tmp_path / "replicas").write_text(f"engine-0=https://127.0.0.1:{engine}\n")
    assert all(line.partition("=")[2].startswith("https://") for line in replicas.split())
    with ExitStack() as stack:
        for kind, name in (("StatefulSet", "engine"), ("Deployment", "router")):
            (container,) = pods[kind]["containers"]
            folder = tmp_path / name
            folder.mkdir()
            for there, here in zip(("tls.crt", "tls.key"), authority.sign(name)):
                here.rename(folder / there)
            (folder / "ca.crt").write_bytes(authority.file.read_bytes())
            mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
            secrets = {one["name"]: one["secret"]["secretName"] for one in pods[kind]["volumes"] if "secret" in one}
            assert set(secrets) <= set(mounted)
            here = {mounted[one] + "/": f"{tmp_path}/{secret.removesuffix('-tls')}/" for one, secret in secrets.items()}
            settings = {"/etc/penstock/replicas": f"{tmp_path}/replicas"}
            deployed = Deployed(stack, tmp_path, here | settings | places)
            keyed = {one["name"]: KEY for one in container["env"] if "valueFrom" in one}
            deployed.start(name, container["args"], keyed)
            if name == "engine":
                deployed.await_health(container["readinessProbe"]["exec"]["command"][-1])
        is_answered(authority, router, KEY)
        is_deaf(authority, engine)
