"""How fast blocks go from one process to another: through a socket, and through memory that both see.

    python -m benchmarks.cpu.transport [--blocks 256] [--bytes 196608] [--rounds 8] [--apart] [--json FILE]

The offering process hands records out of memory; the fetching one verifies each. Both ways go by turns. With `--apart` both
processes do as if they were on two machines: frames are sealed whole, and NIXL reads what shared memory would hold.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock.runtime.core.prefix import Content, Namespace
from penstock.runtime.engine.peers import channel
from penstock.runtime.engine.peers import server as offering
from penstock.runtime.engine.peers.counts import FetchEnd
from penstock.runtime.engine.peers.offers import BlockRead, HandedOut, ReadBlocks
from penstock.runtime.engine.peers.remote import Peer, PeerFetch, RemoteTier
from penstock.runtime.engine.tiers.record import format_digest

KEY, FORMAT = b"a key that both know", format_digest("benchmark")


def set_apart(is_apart: bool) -> None:
    if is_apart:
        channel._is_local = lambda connection: False


def hashes_of(count: int) -> list[bytes]:
    return [number.to_bytes(16, "little") for number in range(count)]


def offer(pipe: Connection, count: int, size: int, least_shared: int, is_apart: bool) -> None:
    """Until the other end hangs up."""
    set_apart(is_apart)
    offering.LEAST_SHARED_BYTES = least_shared
    kv = os.urandom(size)
    held = tuple([Content(hash, bytes(64), Namespace("", "")) for hash in hashes_of(count)])

    def answer(message: Any) -> None:
        if isinstance(message, BlockRead):
            message.reply(HandedOut(ReadBlocks(held, [kv] * count), is_over=True))

    server = offering.BlockServer("127.0.0.1", KEY, FORMAT, answer)
    pipe.send((server.port, server.generation))
    pipe.recv()
    pipe.send(server.num_shared)
    server.close()


def fetched(tier: RemoteTier, peer: Peer, count: int) -> tuple[float, FetchEnd]:
    ended, ends = threading.Event(), []

    def over(end: FetchEnd) -> None:
        ends.append(end)
        ended.set()

    begun = time.perf_counter()
    tier.fetch(PeerFetch(peer, hashes_of(count), 60.0, lambda: True, lambda records: None, over))
    if not ended.wait(60) or ends[0].fault:
        raise SystemExit(f"a fetch ended with {ends}")
    return time.perf_counter() - begun, ends[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--bytes", type=int, default=196_608, help="of a block; Qwen2.5-0.5B has so many for 16 tokens")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--apart", action="store_true", help="as between two machines")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    set_apart(asked.apart)
    memory = "nixl" if asked.apart else "shared memory"
    context, rates = multiprocessing.get_context("spawn"), {"socket": [], memory: []}
    sides: dict[str, tuple[Any, Peer]] = {}
    for name, least in (("socket", 1 << 60), (memory, 0)):
        near, far = context.Pipe()
        process = context.Process(target=offer, args=(far, asked.blocks, asked.bytes, least, asked.apart), daemon=True)
        process.start()
        port, generation = near.recv()
        sides[name] = near, Peer("127.0.0.1", port, generation)
    tier = RemoteTier(KEY, FORMAT)
    for turn in range(asked.rounds + 1):
        for name, (_, peer) in sides.items():
            seconds, end = fetched(tier, peer, asked.blocks)
            if turn:  # the first makes connections
                rates[name].append(end.num_bytes / seconds / 1e9)
    found: dict[str, Any] = {name: round(statistics.median(times), 2) for name, times in rates.items()}
    for name, (pipe, _) in sides.items():
        pipe.send(None)
        found[f"{name}: peers that shared"] = pipe.recv()
    found["ratio"] = round(found[memory] / found["socket"], 2)
    print(json.dumps({"gb_per_s": found, "blocks": asked.blocks, "block_bytes": asked.bytes}), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    tier.close()


if __name__ == "__main__":
    main()
