"""Whoever waits for messages wakes in time, however often the process is stopped meanwhile."""

import signal
import subprocess
import sys
import time
from queue import Empty

import pytest

from penstock.runtime.engine.loop.inbox import Inbox
from tests.machine import PATIENCE_S

READER = """
import time
from queue import Empty
from penstock.runtime.engine.loop.inbox import Inbox
print("begun", flush=True)
end_s = time.monotonic() + 1.0
while time.monotonic() < end_s:
    inbox = Inbox()
    inbox.put(1)
    assert inbox.take(None) == 1
    try:
        inbox.take(1e-6)
        raise SystemExit(1)
    except Empty:
        pass
"""


def test_messages_come_in_their_order_and_absence_is_noticed() -> None:
    inbox: Inbox[int] = Inbox()
    for number in range(3):
        inbox.put(number)
    assert [inbox.take(timeout_s) for timeout_s in (None, 0.0, 1.0)] == [0, 1, 2]
    for timeout_s in (0.0, 1e-9, 1e-3):
        with pytest.raises(Empty):
            inbox.take(timeout_s)


def test_a_reader_that_was_stopped_wakes_all_the_same() -> None:
    with subprocess.Popen([sys.executable, "-c", READER], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        try:
            end_s = time.monotonic() + PATIENCE_S
            while reader.poll() is None and time.monotonic() < end_s:
                reader.send_signal(signal.SIGSTOP)
                reader.send_signal(signal.SIGCONT)
                time.sleep(1e-4)
            assert reader.poll() == 0
        finally:
            reader.kill()
