"""What a router costs: requests a second, added latency, CPU and memory, beside LiteLLM's proxy and sglang-router in one run.

    python benchmarks/router/overhead.py --seconds 5 --concurrency 32 [--others] [--memory 100000] [--json FILE]

Behind every router stand the same two servers of canned answers (this file again, as `--stub PORT`), so only routers differ.
Contenders take turns, `--rounds` times; medians are printed. `--tree DIR` is another checkout of this repository: turns of
half a second beside it tell what a change costs on a machine with other work. `--others` needs `pip install 'litellm[proxy]'
sglang-router` in the environment of `--other-python`; a contender that cannot be started is named with its reason and left
out. `--memory N`: how much memory ours takes after its first requests and after N more.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BODY = json.dumps(
    {"model": "stub", "messages": [{"role": "user", "content": "hello " * 100}], "max_tokens": 16}
).encode()
STREAM_BODY = BODY[:-1] + b',"stream":true}'
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "stub",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 16}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 16, "total_tokens": 116},
}
NUM_EVENTS = 16


class Stub(asyncio.Protocol):
    """Answers at once, as fast as Python can."""

    def __init__(self) -> None:
        body = json.dumps(ANSWER).encode()
        self._whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
            len(body),
            body,
        )
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "stub"}
        event = {**chunk, "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
        events = [b"data: %b\n\n" % json.dumps(event).encode()] * NUM_EVENTS + [b"data: [DONE]\n\n"]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._stream = head + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in events) + b"0\r\n\r\n"
        self._buffer = b""

    def connection_made(self, transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length: ")
            size = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + size:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + size], self._buffer[end + 4 + size :]
            if head.startswith(b"post"):
                self._transport.write(self._stream if b'"stream":true' in body.replace(b" ", b"") else self._whole)
            else:
                text = b'{"object":"list","data":[{"id":"stub","object":"model"}],"status":"ready","model_path":"stub"}'
                self._transport.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(text), text)
                )


async def stub(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


async def load(port: int, body: bytes, seconds: float, concurrency: int) -> list[float]:
    """Latencies of as many requests as fit, one after another on each connection."""
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer sk-test-key-1234\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    end = time.perf_counter() + seconds
    found: list[float] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            start = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                raise RuntimeError(head + await reader.read(300))
            lower = head.lower()
            if b"content-length: " in lower:
                await reader.readexactly(int(lower.split(b"content-length: ")[1].split(b"\r\n", 1)[0]))
            else:
                await reader.readuntil(b"0\r\n\r\n")
            found.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(one() for _ in range(concurrency)))
    return found


def cpu_s(pid: int) -> float:
    """Of a process and its children."""
    total = 0.0
    for one in [pid, *children(pid)]:
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def children(pid: int) -> list[int]:
    try:
        direct = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*direct, *(deeper for one in direct for deeper in children(one))]


def rss_mib(pid: int) -> float:
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in [pid, *children(pid)])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def contenders(
    ports: list[int], folder: Path, trees: list[Path], other_python: str | None
) -> dict[str, tuple[list[str], int]]:
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    found = {}
    for name, tree in (("penstock", None), *((tree.name, tree.resolve()) for tree in trees)):
        port = free_port()
        where = [] if tree is None else ["env", "-C", str(tree), f"PYTHONPATH={tree}"]
        command = [*where, sys.executable, "-m", "penstock", "route", "--port", str(port)]
        found[name] = ([*command, *(f"--replica={url}" for url in urls)], port)
    if other_python:
        port = free_port()
        models = [
            {"model_name": "stub", "litellm_params": {"model": "openai/stub", "api_base": f"{url}/v1", "api_key": "x"}}
            for url in urls
        ]
        config = folder / "litellm.yaml"
        config.write_text(json.dumps({"model_list": models}))
        litellm = str(Path(other_python).parent / "litellm")
        found["litellm"] = ([litellm, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"], port)
        port = free_port()
        command = [other_python, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        found["sglang-router"] = ([*command, "--policy", "cache_aware", "--worker-urls", *urls], port)
    return found


async def ready(port: int, process: "subprocess.Popen[bytes]", patience_s: float = 90.0) -> None:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"it ended with status {process.returncode}")
        try:
            await load(port, BODY, 0.0001, 1)
            return
        except (OSError, RuntimeError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.5)
    raise RuntimeError("it did not answer in time")


async def measure(options: argparse.Namespace) -> None:
    ports = [free_port(), free_port()]
    stubs = [subprocess.Popen([sys.executable, __file__, "--stub", str(port)]) for port in ports]
    environment = {**os.environ, "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    running: dict[str, tuple[subprocess.Popen[bytes], int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            await ready(ports[0], stubs[0])
            for name, (command, port) in contenders(
                ports, Path(folder), options.tree, options.other_python if options.others else None
            ).items():
                log = (Path(folder) / f"{name}.log").open("wb")
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
                try:
                    await ready(port, process)
                    running[name] = (process, port)
                except RuntimeError as error:
                    process.kill()
                    print(f"{name}: left out, {error}: {(Path(folder) / f'{name}.log').read_text()[-400:]}")
            await turns(options, ports, running)
        finally:
            for process, _ in running.values():
                os.killpg(process.pid, signal.SIGTERM)
            for process in stubs:
                process.terminate()


async def turns(options: argparse.Namespace, ports: list[int], running: dict) -> None:
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in ("direct", *running)}
    for _ in range(options.rounds):
        for name in rows:
            process, port = running.get(name, (None, ports[0]))
            row = {}
            for kind, body in (("whole", BODY), ("stream", STREAM_BODY)):
                alone = sorted(await load(port, body, options.seconds / 2, 1))
                before = cpu_s(process.pid) if process else 0.0
                many = sorted(await load(port, body, options.seconds, options.concurrency))
                spent = (cpu_s(process.pid) if process else 0.0) - before
                row |= {
                    f"{kind} requests/s": len(many) / options.seconds,
                    f"{kind} p50 ms, alone": alone[len(alone) // 2] * 1e3,
                    f"{kind} p99 ms, alone": alone[int(len(alone) * 0.99)] * 1e3,
                    f"{kind} CPU us/request": spent / len(many) * 1e6,
                }
            row["MiB"] = rss_mib(process.pid) if process else 0.0
            rows[name].append(row)
    if options.memory:
        await grow(options, *running["penstock"])
    names = list(rows)
    found = {
        name: {key: statistics.median(row[key] for row in rows[name]) for key in rows["direct"][0]} for name in names
    }
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{'':28}" + "".join(f"{name:>16}" for name in names))
    for key in rows["direct"][0]:
        print(f"{key:28}" + "".join(f"{found[name][key]:16,.2f}" for name in names))


async def grow(options: argparse.Namespace, process: "subprocess.Popen[bytes]", port: int) -> None:
    """Memory after many requests more, half of them streams; every prompt is another."""
    before, num_done, start = rss_mib(process.pid), 0, time.perf_counter()
    while num_done < options.memory:
        for body in (BODY, STREAM_BODY):
            fresh = body.replace(b"hello", b"%07d" % num_done, 1)
            num_done += len(await load(port, fresh, 1.0, options.concurrency))
    after = rss_mib(process.pid)
    seconds = time.perf_counter() - start
    print(f"memory: {before:.1f} MiB, after {num_done:,} requests more in {seconds:.0f} s {after:.1f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stub", type=int)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--tree", type=Path, action="append", default=[], help="another checkout, whose router takes part"
    )
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--other-python", default=sys.executable)
    given = parser.parse_args()
    import uvloop

    uvloop.run(stub(given.stub) if given.stub else measure(given))
