"""Candidates and demands that simulate in a moment: a small model, short requests."""

from penstock.metrics.summary import Slo
from penstock.runtime.models import catalog
from penstock.tools.cost import hardware
from penstock.tools.cost.layout import SINGLE
from penstock.tools.cost.precision import precision_of
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.demand import Demand, SloTarget
from penstock.tools.workload.lengths import Uniform

TARGET = SloTarget(Slo(ttft_s=0.1, tpot_s=0.02))


def make_candidate(model="smollm2-135m", device="l4", layout=SINGLE, weights="bf16", kv="bf16", **rest):
    machine = hardware.find(device) if isinstance(device, str) else device
    return Candidate(
        catalog.find(model),
        machine,
        layout,
        weights,
        kv,
        precision_of(weights, kv, machine.achievable),
        **{"max_sequences": 16, "max_batch_tokens": 512} | rest,
    )


def make_demand(rate=20.0, prompts=(50, 250), answers=(4, 24), **rest):
    return Demand(rate, Uniform(*prompts), Uniform(*answers), **rest)
