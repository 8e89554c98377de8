"""Which processors of a machine each of its ranks has: those of a memory node of its own, so that what it reads is near.

    processors   as the system lists them: number, core (two that share one are siblings), memory node
    shared       a run of whole cores each; with fewer ranks than nodes, whole nodes

Pure but for `read_processors` and `pin`. Nothing here knows a model.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.runtime.models.ranks import share

SYSTEM = Path("/sys/devices/system")


class Processor(NamedTuple):
    number: int
    core: tuple[int, int]
    """Package and core of it."""
    node: int


def shared(processors: Sequence[Processor], count: int) -> list[tuple[int, ...]]:
    """For each of `count` ranks the numbers of its processors; none at all if there are not enough cores for everybody."""
    by_node: dict[int, dict[tuple[int, int], list[int]]] = {}
    for number, core, node in sorted(processors, key=lambda one: (one.node, one.core, one.number)):
        by_node.setdefault(node, {}).setdefault(core, []).append(number)
    nodes = [list(cores.values()) for cores in by_node.values()]
    if count <= len(nodes):
        held = [share(len(nodes), count, index) for index in range(count)]
        return [_numbers(core for node in nodes[each.start : each.stop] for core in node) for each in held]
    found: list[tuple[int, ...]] = []
    for place, cores in enumerate(nodes):
        num_here = len(share(count, len(nodes), place))
        parts = [share(len(cores), num_here, index) for index in range(num_here)]
        found += [_numbers(cores[each.start : each.stop]) for each in parts]
    return found if all(found) and len(found) == count else []


def read_processors(allowed: Iterable[int], system: Path = SYSTEM) -> list[Processor]:
    """The processors that the system describes; none where it describes nothing."""
    node_of: dict[int, int] = {}
    for path in sorted(system.glob("node/node[0-9]*")):
        node = int(path.name.removeprefix("node"))
        node_of |= dict.fromkeys(_listed(path / "cpulist"), node)
    found = []
    for number in sorted(allowed):
        topology = system / f"cpu/cpu{number}/topology"
        package, core = _number(topology / "physical_package_id"), _number(topology / "core_id")
        if package is None or core is None:
            return []
        found.append(Processor(number, (package, core), node_of.get(number, 0)))
    return found


def pin(index: int, count: int) -> int | None:
    """Keep this thread, and all that it begins, on one rank's processors. Returns how many cores those are.

    None, with nothing done, on a machine of one memory node, where the system's scheduler places threads as well, and where
    there is not a core for everybody.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    processors = read_processors(os.sched_getaffinity(0))
    if len({one.node for one in processors}) < 2:
        return None
    parts = shared(processors, count)
    if not parts:
        return None
    os.sched_setaffinity(0, parts[index])
    return len({one.core for one in processors if one.number in parts[index]})


def _numbers(cores: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sorted(number for core in cores for number in core))


def _listed(path: Path) -> list[int]:
    """0-3,8 as the system writes it."""
    try:
        parts = [part.partition("-") for part in path.read_text().strip().split(",") if part]
        return [number for low, _, high in parts for number in range(int(low), int(high or low) + 1)]
    except (OSError, ValueError):
        return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
