"""Fleets and workloads to simulate: an 8B model on an H100, with small caches and batches where pressure is wanted."""

from dataclasses import replace

from penstock.config import CacheConfig, EngineConfig, SchedulerConfig
from penstock.runtime.models import catalog
from penstock.runtime.sizing import Memory, size_engine
from penstock.tools.cost.hardware import find
from penstock.tools.cost.roofline import Roofline
from penstock.tools.sim.simulation import Fleet
from penstock.tools.workload.arrivals import Poisson
from penstock.tools.workload.lengths import LogNormal, Uniform
from penstock.tools.workload.workload import Recipe

SPEC = catalog.find("llama-3-8b")
H100 = find("h100-sxm")
COST = Roofline(SPEC, H100.achievable)
MEMORY = Memory(free_bytes=H100.memory_bytes, weight_bytes=SPEC.num_parameters * 2)


def make_fleet(batching="continuous", cost=COST, num_blocks=None, prefix_caching=True, order="first-come", **rest):
    scheduler_names = ("max_sequences", "max_batch_tokens", "max_waiting", "gather_s", "tpot_target_ms")
    asked = {name: rest.pop(name) for name in scheduler_names if name in rest}
    config = EngineConfig(
        cache=CacheConfig(num_blocks=num_blocks, prefix_caching=prefix_caching),
        scheduler=SchedulerConfig(batching=batching, order=order, **asked),
    )
    return Fleet(config, size_engine(config, SPEC, MEMORY), cost, **rest)


def make_workload(seed=0, num_requests=60, rate=20.0, arrivals=None, prompts=None, answers=None, prefix=None):
    recipe = Recipe(
        arrivals or Poisson(rate),
        prompts or Uniform(5, 300),
        answers or LogNormal(40, 1.0, 1, 400),
        num_requests=num_requests,
        prefix=prefix,
    )
    return recipe.make(seed)


def with_requests(workload, change):
    """The same workload with `change(request)` in place of each request."""
    return replace(workload, requests=tuple(change(request) for request in workload.requests))
