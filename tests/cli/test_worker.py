"""Processes that compute for pages of the web app."""

import os
import select
import subprocess
import sys

import pytest

PAUSED = """
import os, signal, subprocess, sys
words = [sys.executable, "-m", "penstock.cli.app.worker"]
worker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[int(sys.argv[1])])
worker.stdin.write(b'{"task": "simulate", "words": ["--num-requests", "20000"], "frames": true}\\n')
worker.stdin.flush()
assert b"progress" in worker.stdout.readline()
os.kill(worker.pid, signal.SIGSTOP)
print("it pauses", flush=True)
signal.pause()
"""
PAUSED_EARLY = """
import asyncio, functools, os, signal, sys
from penstock.service.server.ui import tools

async def begin():
    worker = await tools._start()
    os.kill(worker.pid, signal.SIGSTOP)  # before it could import or say anything
    print("it pauses", flush=True)
    signal.pause()

begin_process = asyncio.create_subprocess_exec
asyncio.create_subprocess_exec = functools.partial(begin_process, pass_fds=[int(sys.argv[1])])
asyncio.run(begin())
"""
TASK = b'{"task": "command", "words": ["calc", "--help"]}\n'


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("begin", [PAUSED, PAUSED_EARLY], ids=["at its task", "at its birth"])
def test_a_worker_that_was_made_to_pause_ends_with_its_server(begin: str) -> None:
    held, inherited = os.pipe()  # open at its other end as long as one of the two lives
    words = [sys.executable, "-c", begin, str(inherited)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=[inherited], text=True) as server:
        os.close(inherited)
        assert server.stdout is not None
        assert server.stdout.readline() == "it pauses\n"
        server.kill()
    assert select.select([held], [], [], 30.0)[0], "the worker is still there"
    assert os.read(held, 1) == b""
    os.close(held)


def test_a_worker_whose_server_ended_before_it_began_does_nothing() -> None:
    words = [sys.executable, "-m", "penstock.cli.app.worker", str(os.getppid())]
    done = subprocess.run(words, input=TASK, capture_output=True, timeout=300.0, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
