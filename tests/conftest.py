"""What holds for every test, and which tier each belongs to.

plain     no torch, no process: what a person runs on every save (`make test-fast`)
torch     operations, layers, runners, real models in this process
server    processes that serve, and the clients that call them
web       the app in a real browser        cuda     a GPU
long      whole files of real models, browsers and faults, half of the suite's time: `make test-long`, and always before a merge
slow      campaigns, and what takes more than some seconds of a core where something quicker shows the same law
"""

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Examples are the same at every run, and no example fails for being slow on a busy machine.
settings.register_profile("default suite", derandomize=True, deadline=None)
settings.load_profile("default suite")

if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    # Each of several workers, and what it starts, has cores of its own: threads that spin for one another would share them.
    cores, count = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    if count <= len(cores):
        os.sched_setaffinity(0, cores[number % count :: count])

# Processes that tests start find this project's modules compiled, also where the environment forbids to keep them so.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

TESTS = Path(__file__).parent
TIERS = {
    "torch": ("ops", "layers", "runtime", "models", "assembly", "test_llm.py", "test_real_model.py", "test_beam.py"),
    "server": (
        "test_ranks.py",
        "server",
        "router",
        "gateway",
        "cluster",
        "cli",
        "bench",
        "doctor",
        "engine",
        "measure",
        "conform",
    ),
    "web": ("web",),
    "cuda": ("gpu",),
}
TORCH_FILES = (
    "test_ranks.py",
    "test_perplexity.py",
    "test_speculation.py",
    "test_structured.py",
    "test_sizing.py",
    "test_preload.py",
)

LONG = (
    "web",
    "test_real_model.py",
    "test_speculation.py",
    "test_ranks.py",
    "ops/test_interpreted.py",
    "ops/triton/test_compile_ahead.py",
    "models/test_served.py",
    "runtime/test_engine.py",
    "runtime/test_kinds.py",
    "engine/tiers/test_real.py",
    "engine/test_speculation.py",
    "server/test_faults.py",
    "server/test_models.py",
    "server/test_ui.py",
    "router/test_sockets.py",
    "router/test_silent.py",
    "router/test_roles.py",
    "bench/test_session.py",
    "cli/test_bench.py",
    "doctor/test_real.py",
    "formats/test_lattices.py",
    "adapters/test_crossed.py",
    "planner/test_search.py",
    "assembly/test_memory.py",
)
assert all((TESTS / name).exists() for name in LONG), "LONG names a file that is not there"

LIMIT_S = 300.0
"""Of one test."""

FIRST = (
    "test_real_model.py",
    "ops/test_interpreted.py",
    "web/test_pages.py",
    "test_ranks.py",
    "test_nodes.py",
    "cli/test_bench.py",
    "cluster/test_up.py",
    "cli/test_profile.py",
    "server/test_campaigns.py",
    "text/grammar/test_compiler.py",
    "server/test_damaged.py",
    "web/test_dashboard.py",
)
"""Files that take longest begin first, and plain ones come last: no worker is left with a long one while others have ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    homes = {name: tier for tier, names in TIERS.items() for name in names} | dict.fromkeys(TORCH_FILES, "torch")
    for item in items:
        path = item.path.relative_to(TESTS)
        item.add_marker(homes.get(path.parts[0], "plain"))
        if path.parts[0] in LONG or path.as_posix() in LONG:
            item.add_marker("long")
    items.sort(key=_turn)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draws of a test, and of fixtures made for it, are the same at every run, whichever tests ran before."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that hangs fails: no wait of a test is longer than its machine's patience, and few follow one another."""
    if item.get_closest_marker("slow") is not None or not hasattr(signal, "setitimer"):
        return (yield)

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError(f"{item.nodeid} has not ended after {LIMIT_S:.0f} s; it hangs, or belongs to the slow tier")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _turn(item: pytest.Item) -> int:
    name = item.path.relative_to(TESTS).as_posix()
    if name in FIRST:
        return FIRST.index(name)
    return len(FIRST) + (item.get_closest_marker("plain") is not None)
