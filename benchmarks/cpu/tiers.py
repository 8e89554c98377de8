"""The disk tier on a CPU: a session resumed after a restart, sessions that do not fit the pool, a load that repeats nothing,
users who think before they come back.

python -m benchmarks.cpu.tiers [--model default] [--tokens 6000] [--cases resume,cycle,once,think] [--json FILE]
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.sessions import converse
from penstock.assembly.engine import LoadedModel, load, make_engine, size
from penstock.config import EngineConfig, configure
from penstock.runtime.engine.engine import Engine

BLOCK = 16


@contextmanager
def engine_of(config: EngineConfig, loaded: LoadedModel, **settings: Any) -> Iterator[Engine]:
    config = configure(config, **settings)
    engine = make_engine(config, loaded, size(config, loaded))
    try:
        converse(engine, users=1, turns=1, first=64, more=0, answer=2, seed=99)
        yield engine
    finally:
        engine.close()


def resume(config: EngineConfig, loaded: LoadedModel, folder: Path, num_tokens: int) -> dict[str, Any]:
    """The first turn is computed; a second process' worth of engine begins the second from the disk."""
    shape = {"users": 1, "first": num_tokens, "more": 32, "answer": 4, "first_id": 10}
    disk = {"kv_disk": str(folder / "resume"), "kv_disk_size": "2GiB"}
    with engine_of(config, loaded, **disk) as engine:
        first = converse(engine, turns=1, **shape)
    with engine_of(config, loaded, **disk) as engine:
        again = converse(engine, turns=1, **shape)
        counts = engine.tiers.counts if engine.tiers is not None else None
    computed, resumed = first.ttft_s[0], again.ttft_s[0]
    return {
        "tokens": num_tokens,
        "computed_s": round(computed, 3),
        "resumed_s": round(resumed, 3),
        "ratio": round(computed / resumed, 1),
        "equal": first.answers == again.answers,
        "loaded_blocks": counts.loaded_blocks if counts else 0,
        "disk_bytes": counts.disk_bytes if counts else 0,
    }


def cycle(config: EngineConfig, loaded: LoadedModel, folder: Path) -> dict[str, Any]:
    """20 sessions take turns over a pool that holds 5."""
    shape = {"users": 20, "turns": 3, "first": 208, "more": 12, "answer": 4, "at_once": 1, "first_id": 10}
    num_blocks = 5 * (208 + 3 * 16) // BLOCK
    found: dict[str, Any] = {"load": shape, "num_blocks": num_blocks}
    answers = []
    disk = {"kv_disk": str(folder / "cycle"), "kv_disk_size": "2GiB"}
    for name, tiers in (("without", {}), ("tiers", disk)):
        with engine_of(config, loaded, num_blocks=num_blocks, max_context=512, **tiers) as engine:
            turns = converse(engine, **shape)
            found[name] = turns.figures | ({} if engine.tiers is None else engine.tiers.counts._asdict())
            answers.append(turns.answers)
    found["ratio"] = round(found["without"]["wall_s"] / found["tiers"]["wall_s"], 2)
    found["equal"] = answers[0] == answers[1]
    return found


def once(config: EngineConfig, loaded: LoadedModel, folder: Path) -> dict[str, Any]:
    """Prompts that repeat nothing, by turns with and without tiers."""
    shape = {"users": 8, "turns": 1, "first": 240, "more": 0, "answer": 4, "at_once": 2}
    walls: dict[str, list[float]] = {"without": [], "tiers": []}
    disk = {"kv_disk": str(folder / "once"), "kv_disk_size": "2GiB"}
    with (
        engine_of(config, loaded, num_blocks=64, max_context=512) as plain,
        engine_of(config, loaded, num_blocks=64, max_context=512, **disk) as tiered,
    ):
        for turn in range(6):
            pair = [("without", plain), ("tiers", tiered)]
            for name, engine in pair if turn % 2 else reversed(pair):
                walls[name].append(converse(engine, seed=turn, first_id=1000 * (turn + 1), **shape).wall_s)
    return {"walls_s": walls, "ratio": round(min(walls["without"]) / min(walls["tiers"]), 3)}


def think(config: EngineConfig, loaded: LoadedModel, folder: Path) -> dict[str, Any]:
    """Agents come back after seconds, while others pass by once: which prompt tokens are found, and where.

    `lru`: the device's cache alone. `retained`: sessions are named and stay on the device; host memory holds one block, so that
    no tier helps. `tiers`: named, with a disk. Turns of all three by turns.
    """
    shape = {"users": 6, "turns": 4, "first": 208, "more": 12, "answer": 4, "think_s": 6.0, "passers": 24}
    session_blocks = (208 + 4 * 16) // BLOCK
    pool = {"num_blocks": 6 * session_blocks, "max_context": 512}
    ways: dict[str, dict[str, Any]] = {
        "lru": {},
        "retained": {"kv_host": "256KiB"},
        "tiers": {"kv_disk": str(folder / "think"), "kv_disk_size": "2GiB"},
    }
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for seed in (1, 2):
        for name, tiers in ways.items():
            with engine_of(config, loaded, **pool, **tiers) as engine:
                rows[name].append(
                    converse(engine, seed=seed, first_id=10, names_sessions=name != "lru", **shape).figures
                )
    hits = {name: sum(row["device_tokens"] + row["tier_tokens"] for row in found) for name, found in rows.items()}
    return {"load": shape, **pool, "rows": rows, "hit_tokens": hits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--cases", default="resume,cycle,once,think")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    config = configure(model=asked.model, speculate="off")
    loaded = load(config)
    found: dict[str, Any] = {"model": asked.model, "device": loaded.device.name}
    with tempfile.TemporaryDirectory(prefix="penstock-tiers-") as folder:
        cases = {
            "resume": lambda: resume(config, loaded, Path(folder), asked.tokens),
            "cycle": lambda: cycle(config, loaded, Path(folder)),
            "once": lambda: once(config, loaded, Path(folder)),
            "think": lambda: think(config, loaded, Path(folder)),
        }
        for name in asked.cases.split(","):
            found[name] = cases[name]()
            print(json.dumps({name: found[name]}), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
