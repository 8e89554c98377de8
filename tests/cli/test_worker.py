"""Processes that compute for pages of the web app."""

import os
import select
import subprocess
import sys

import pytest

BEGIN = """
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_worker_that_was_made_to_pause_ends_with_its_server() -> None:
    held, inherited = os.pipe()  # open at its other end as long as one of the two lives
    words = [sys.executable, "-c", BEGIN, str(inherited)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=[inherited], text=True) as server:
        os.close(inherited)
        assert server.stdout is not None
        assert server.stdout.readline() == "it pauses\n"
        server.kill()
    assert select.select([held], [], [], 30.0)[0], "the worker is still there"
    assert os.read(held, 1) == b""
    os.close(held)
