"""Two checkouts by turns: the same benchmark of each, medians of every figure, and their ratio.

    python -m benchmarks.turns OTHER_CHECKOUT [--turns 3] [--json FILE] -- benchmarks/server.py --streams 256 --json OUT

Each run is a process of its own in its own checkout, which must have its native library built. OUT stands for the file that the
benchmark writes its figures to, as JSON; they are named by their places in it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def figures(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a report, by its place."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from figures(part, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from figures(part, f"{place}[{number}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, float(value)


def run(tree: Path, command: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        filled = [str(out) if part == "OUT" else part for part in command]
        subprocess.run([sys.executable, *filled], cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, check=True)
        return dict(figures(json.loads(out.read_text())))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("other", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    middle = sys.argv.index("--")
    own, command = sys.argv[1:middle], sys.argv[middle + 1 :]
    options = parser.parse_args(own)
    trees = {"other": options.other.resolve(), "this": ROOT}
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for turn in range(options.turns):
        for name in sorted(trees, reverse=bool(turn % 2)):
            seen[name].append(run(trees[name], command))
    table = {}
    for figure in seen["this"][0]:
        if all(figure in one for name in seen for one in seen[name]):
            other, this = (statistics.median(one[figure] for one in seen[name]) for name in ("other", "this"))
            table[figure] = {"other": other, "this": this, "ratio": round(this / other, 4) if other else None}
            print(f"{figure:50} {other:12.3f} {this:12.3f} {table[figure]['ratio']}")
    if options.json is not None:
        value = {"command": command, "turns": options.turns, "figures": table}
        options.json.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()
