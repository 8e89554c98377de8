"""Laws of `penstock doctor`: it judges the machine without a server, and a server by its metrics alone."""

import errno
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from penstock.cli import doctor
from penstock.cli.doctor import Config
from penstock.cli.main import main
from penstock.errors import ConfigError
from penstock.service.upstream.ask import UnreachableError
from penstock.tools.doctor.checks import CHECKS
from penstock.tools.doctor.rules import RULES
from penstock.tools.doctor.signs import REFUSED, SILENT, UNINTELLIGIBLE, UNREACHABLE
from penstock.tools.measure import environment
from penstock.tools.measure.environment import ProcessorGroup, look_around, read_meminfo, torch_cuda
from tests.server.serving import ROOT, serving

VLLM_PAGE = b"""
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 9.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.97
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 7.0
"""


@contextmanager
def answering(page: bytes, location: str = "") -> Iterator[str]:
    """A server of another kind: /metrics and /health, or the way to another place."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = 302 if location else 200 if self.path in ("/metrics", "/health") else 404
            body = page if self.path == "/metrics" else b""
            self.send_response(status)
            if location:
                self.send_header("location", location)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def here() -> dict:
    command = [sys.executable, "-m", "penstock", "doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    data = json.loads(done.stdout)
    assert done.returncode == int(data["verdict"] == "fault"), done.stderr
    return data


def test_this_machine_is_examined_in_every_respect(here: dict) -> None:
    findings = {finding["id"]: finding for finding in here["findings"]}
    assert list(findings) == [check.id for check in CHECKS]
    assert findings["torch"]["verdict"] == findings["python"]["verdict"] == "ok"
    assert findings["python"]["evidence"] == ".".join(map(str, sys.version_info[:3]))
    assert findings["torch"]["layer"] == "L2"


def test_a_torch_that_does_not_start_is_a_finding_and_not_a_crash(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open shared object file')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "OSError: libtorch.so: cannot open shared object file" in printed
    assert "fault: torch" in printed


def test_a_torch_that_kills_or_hangs_its_process_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    assert "SIGILL" in look_around(0).torch.fault
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(environment, "TORCH_S", 0.2)
    assert "does not start within" in look_around(0).torch.fault


def test_a_taken_port_and_a_folder_without_room_for_sockets_are_seen(tmp_path, monkeypatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not needed here')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(environment.tempfile, "tempdir", str(deep))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = look_around(port)
    assert found.port_fault == os.strerror(98)
    assert "path too long" in found.temporary_fault
    assert not list(deep.iterdir())


def group(folder: Path, membership: str, files: dict[str, str]) -> ProcessorGroup:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "membership").write_text(membership)
    return ProcessorGroup(folder, folder / "membership")


def test_a_container_s_limits_are_read_from_the_newer_interface(tmp_path) -> None:
    files = {
        "cpu.stat": "usage_usec 5\n",
        "pod/cpu.max": "max 100000\n",
        "pod/memory.max": "3000\n",
        "pod/memory.current": "1000\n",
        "pod/own/cpu.max": "150000 100000\n",
        "pod/own/cpu.stat": "usage_usec 5\nnr_periods 200\nnr_throttled 30\n",
        "pod/own/memory.max": "max\n",
        "pod/own/memory.current": "900\n",
    }
    own = group(tmp_path, "0::/pod/own\n", files)
    assert (own.quota_cores, own.throttled_fraction, own.free_bytes) == (1.5, 0.15, 2000)


def test_a_container_s_limits_are_read_from_the_older_interface(tmp_path) -> None:
    files = {
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "cpu/own/cpu.cfs_quota_us": "50000\n",
        "cpu/own/cpu.cfs_period_us": "100000\n",
        "cpu/own/cpu.stat": "nr_periods 10\nnr_throttled 1\nthrottled_time 4\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": "5\n",
        "memory/own/memory.limit_in_bytes": "700\n",
        "memory/own/memory.usage_in_bytes": "900\n",
    }
    own = group(tmp_path, "4:memory:/own\n3:cpu,cpuacct:/own\n0::/\n", files)
    assert (own.quota_cores, own.throttled_fraction, own.free_bytes) == (0.5, 0.1, 0)


def test_no_container_means_no_limit(tmp_path) -> None:
    free = group(tmp_path, "", {})
    assert (free.quota_cores, free.throttled_fraction, free.free_bytes) == (None, None, environment.UNBOUNDED)


def test_files_of_the_system_are_read(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_text("MemTotal:   10 kB\nMemAvailable:    7 kB\nHugePages_Total:       0\n")
    assert read_meminfo(path) == {"MemTotal": 10240, "MemAvailable": 7168}
    path.write_text("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    assert torch_cuda(path) == "13.0"
    path.write_text("cuda: Optional[str] = None\n")
    assert torch_cuda(path) == torch_cuda(tmp_path / "nothing") == ""


def test_a_server_is_examined_by_its_address(capsys) -> None:
    with serving(model="oracle:step_ms=5") as server:
        words = ["doctor", server.url + "/", "--window-s", "0.3"]
        assert main(words) == 0
        printed = capsys.readouterr()
        layers = {line.split()[1] for line in printed.out.splitlines() if line.startswith(("warning: ", "critical: "))}
        assert layers <= {"L0"}, "the machine of a test may be busy; nothing is wrong with the server"
        assert layers or "nothing is wrong with this server, as far as an idle one shows" in printed.out
        assert "output tokens/s" in printed.out
        assert "TTFT p95" not in printed.out, "nothing began, so there is no figure"
        assert "not exposed" not in printed.out
        assert main([*words, "--json", "--hardware", "h100-sxm", "--model", "llama-3.1-8b"]) == 0
        data = json.loads(capsys.readouterr().out)
    assert data["version"]
    assert data["signs"]["window_s"] >= 0.3
    assert data["signs"]["ttft_p95_s"] is None
    assert data["signs"]["floor_s"] > 0
    assert data["unexamined"] == {}


def test_a_page_with_other_engines_names_is_judged_as_far_as_it_goes(capsys) -> None:
    with answering(VLLM_PAGE) as url:
        assert main(["doctor", url, "--window-s", "0.1", "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert [finding["id"] for finding in data["findings"]] == ["kv-full"]
        assert data["findings"][0]["layer"] == "L4"
        assert "97 % of 1,600 tokens" in data["findings"][0]["evidence"]
        assert "penstock_engine_restarts_total" in data["unexamined"]["engine-restarting"]
        assert set(data["unexamined"]) < {rule.id for rule in RULES}
        main(["doctor", url, "--window-s", "0.1"])
        printed = capsys.readouterr().out
    assert "warning: L4 scheduling: the KV cache is full, so requests wait" in printed
    assert "penstock_engine_steps_total" in printed.partition("not exposed: ")[2]


def test_the_key_goes_nowhere_else(capsys) -> None:
    with answering(b"", location="http://127.0.0.1:9/metrics") as url:
        assert main(["doctor", url, "--api-key", "secret-of-ours"]) == 1
        printed = capsys.readouterr().out
    assert "has no metrics" in printed
    assert "302" in printed


def test_nobody_there_is_a_finding_told_at_once(capsys) -> None:
    assert main(["doctor", "http://127.0.0.1:9", "--window-s", "3600"]) == 1
    printed = capsys.readouterr().out
    assert "L5 gateway: no server listens" in printed
    assert "penstock serve" in printed


def test_a_server_that_takes_connections_and_says_nothing_is_told_apart_and_soon(monkeypatch, capsys) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.6)
    monkeypatch.setattr(doctor, "HASTY_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert main(["doctor", f"http://127.0.0.1:{listener.getsockname()[1]}", "--window-s", "3600"]) == 1
    printed = capsys.readouterr().out
    assert "accepts connections but does not answer" in printed
    assert "penstock serve" not in printed
    assert " ms" not in printed, "a time of our own is no latency of the server's"


def unreachable(cause: OSError) -> UnreachableError:
    error = UnreachableError(*cause.args)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (unreachable(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")), REFUSED),
        (TimeoutError("timed out"), SILENT),
        (unreachable(TimeoutError("timed out")), UNREACHABLE),
        (unreachable(socket.gaierror(socket.EAI_NONAME, "Name or service not known")), UNREACHABLE),
        (unreachable(OSError(errno.ENETUNREACH, "Network is unreachable")), UNREACHABLE),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), UNINTELLIGIBLE),
        (ConnectionError("unreadable answer: 220 smtp ready"), UNINTELLIGIBLE),
        (ssl.SSLError(1, "wrong version number"), UNINTELLIGIBLE),
    ],
    ids=str,
)
def test_why_no_answer_came_is_told_apart(error: Exception, status: float) -> None:
    assert doctor.why_unanswered(error) == status


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"window_s": 0.0}, "--window-s"),
        ({"window_s": float("nan")}, "--window-s"),
        ({"url": "localhost:8000"}, "begins with http"),
        ({"port": 70_000}, "--port"),
        ({"hardware": "h100-sxm"}, "go together"),
        ({"model": "llama-3.1-8b"}, "go together"),
    ],
)
def test_what_cannot_be_done_is_refused(values: dict, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Config(**values)


def test_a_machine_nobody_knows_is_refused_before_the_wait(capsys) -> None:
    words = ["doctor", "http://127.0.0.1:9", "--hardware", "abacus", "--model", "llama-3.1-8b"]
    assert main(words) == 2
    assert "abacus" in capsys.readouterr().err


def test_top_shows_the_fullest_cache_of_several_engines_and_all_their_requests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    usage = b"".join(
        b'vllm:kv_cache_usage_perc{engine="%d"} 0.%d\nvllm:num_requests_running{engine="%d"} 3.0\n'
        % (engine, share, engine)
        for engine, share in enumerate((7, 8, 6))
    )
    with answering(usage) as url:
        assert main(["top", url, "--once", "--json", "--every-s", "0.05"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["kv_percent"] == 80.0
    assert figures["running"] == 9.0
