"""What engines take of the machine's memory, or of their device: now, and what they may come to."""

import os
from pathlib import Path

from penstock.runtime.engine.client import EngineClient

WORD_BYTES = 1280
"""What an engine's grammars take for each word of the vocabulary, made when it is ready already."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """Memory that a process and those it began hold now; 0 where the system does not report it."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError, ValueError):
        return 0
    return own + sum(resident_bytes(int(child)) for child in children)


def taken_bytes(client: EngineClient) -> int:
    """What an engine takes now: of this machine, or of its device."""
    facts = client.facts
    if facts is not None and facts.device != "cpu":
        return sum(size for _, size in facts.memory)
    return 0 if client.pid is None else resident_bytes(client.pid)


def promised_bytes(client: EngineClient) -> int:
    """What a fresh engine may come to take: on a CPU its cache takes memory as it is written, and grammars as they are used."""
    facts = client.facts
    if facts is None or facts.device != "cpu":
        return taken_bytes(client)
    words = facts.vocab_size * WORD_BYTES if facts.can_generate else 0
    return taken_bytes(client) + dict(facts.memory).get("KV cache", 0) + words
