"""Our server meets every MUST of our own suite; and a batch without a server goes on where it was stopped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.tools.conform.check import ApiCheck, Level, Target
from penstock.tools.conform.table import SUITES
from tests.server.serving import ROOT, Server, chat_text
from tests.server.test_batches import chat_lines, text_of

MUST = [check for suite in SUITES.values() for check in suite.checks if check.level is Level.MUST]


@pytest.mark.parametrize("check", MUST, ids=lambda check: f"{check.dialect}: {check.name}")
def test_every_must_is_met(server: Server, check: ApiCheck) -> None:
    check.run(Target(server.url, "default"))


def test_a_batch_without_a_server_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "in.out.jsonl"
    source.write_text("\n".join(map(json.dumps, chat_lines(12, tokens=3))))
    part = tmp_path / "in.out.jsonl.part"
    kept = {"custom_id": "line-0", "response": {"body": {"choices": [{"message": {"content": "kept"}}]}}}
    part.write_text("1\t0\t" + json.dumps(kept) + "\n2\t0\t{cut o")
    words = [sys.executable, "-m", "penstock", "batch", "run", str(source), "oracle:"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = {line["custom_id"]: text_of(line) for line in map(json.loads, output.read_text().splitlines())}
    assert found == {"line-0": "kept"} | {f"line-{k}": chat_text(f"ask {k}", 3) for k in range(1, 12)}
    assert not part.exists()
