"""Ranks have processors of their own, whole cores, near each other's memory; given topologies, no machine needed."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.execution.parallel.machine.processors import Processor, read_processors, shared


def machine(num_nodes: int, cores_each: int, threads: int = 1) -> list[Processor]:
    """Numbered as systems do: first threads of all cores, then second ones."""
    total = num_nodes * cores_each
    return [
        Processor(thread * total + core, (core // cores_each, core % cores_each), core // cores_each)
        for thread in range(threads)
        for core in range(total)
    ]


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 2), st.integers(1, 16))
def test_parts_are_apart_and_keep_cores_whole(num_nodes: int, cores_each: int, threads: int, count: int) -> None:
    processors = machine(num_nodes, cores_each, threads)
    parts = shared(processors, count)
    if not parts:
        assert count > num_nodes * cores_each // 2 or count > num_nodes
        return
    assert len(parts) == count
    taken = [number for part in parts for number in part]
    assert sorted(taken) == sorted(one.number for one in processors), "every processor is somebody's, once"
    core_of = {one.number: one.core for one in processors}
    node_of = {one.number: one.node for one in processors}
    owners = {core: index for index, part in enumerate(parts) for core in {core_of[number] for number in part}}
    assert all(owners[core_of[number]] == index for index, part in enumerate(parts) for number in part)
    if count >= num_nodes:
        assert all(len({node_of[number] for number in part}) == 1 for part in parts), "within one memory node"


def test_two_sockets_with_siblings() -> None:
    processors = machine(2, 4, threads=2)
    assert shared(processors, 2) == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
    assert shared(processors, 4) == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]
    assert shared(processors, 9) == [], "nobody is left without a core"


def test_a_machine_is_read_as_the_system_describes_it(tmp_path: Path) -> None:
    for node, listed in ((0, "0-1,4-5"), (1, "2-3,6-7")):
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(listed + "\n")
    for number in range(8):
        topology = tmp_path / f"cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{number % 4 // 2}\n")
        (topology / "core_id").write_text(f"{number % 2}\n")
    found = read_processors(range(8), tmp_path)
    assert found == [Processor(n, (n % 4 // 2, n % 2), n % 4 // 2) for n in range(8)]
    assert shared(found, 2) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert read_processors([2, 6], tmp_path) == [Processor(2, (1, 0), 1), Processor(6, (1, 0), 1)], (
        "only what we may use"
    )
    assert read_processors([9], tmp_path) == []


@pytest.mark.skipif(not Path("/sys/devices/system/cpu").is_dir(), reason="the system describes no processors")
def test_this_machine_is_read() -> None:
    allowed = os.sched_getaffinity(0)
    assert {one.number for one in read_processors(allowed)} in (allowed, set())
