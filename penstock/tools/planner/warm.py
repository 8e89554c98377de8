"""A run that starts in the middle: requests that would already be running are put there first.

Answers of a thousand tokens take most of a minute, so an engine that starts empty takes minutes of arrivals to fill, and is
faster than it should be until then. A request met at a random moment has a long answer more often than a short one, and has
generated any part of it: such requests, with what they have generated as part of their prompts, arrive before all others.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import NamedTuple

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.request import Request, SamplingParams
from penstock.tools.cost.cost import plain_chunk
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.demand import Demand
from penstock.tools.planner.steady import num_inside
from penstock.tools.workload.workload import Workload

FIRST_ID = 10**9
SLACK = 1.5
"""Times as long as computing them should take."""


def warm_start(candidate: Candidate, demand: Demand, workload: Workload, rate: float, num_copies: int) -> "Warm":
    """The workload, begun after requests that already run in a steady state."""
    count = num_copies * num_inside(candidate, demand.sizes, rate / num_copies, demand.mean_repeated)
    before = list(_inside(demand, count, candidate.spec.vocab_size))
    start_s = SLACK * _seconds(candidate, before) / num_copies
    after = [replace(request, arrival_s=request.arrival_s + start_s) for request in workload.requests]
    return Warm(Workload((*before, *after), workload.later), start_s)


class Warm(NamedTuple):
    workload: Workload
    start_s: float
    """When the first request of the workload itself may come."""


def _inside(demand: Demand, count: int, vocab_size: int) -> Iterator[Request]:
    random = Random(f"{demand.seed} inside")
    answers = [answer for _, answer in demand.sample]
    tokens = range(vocab_size)
    for number in range(count):
        (prompt, answer) = random.choices(demand.sample, answers)[0]
        done = random.randrange(answer)
        params = SamplingParams(max_tokens=answer - done, ignore_eos=True, temperature=0.0)
        words = tuple(random.choices(tokens, k=prompt + done))
        yield Request(request_id=FIRST_ID + number, prompt=words, params=params, arrival_s=0.0)


def _seconds(candidate: Candidate, requests: list[Request]) -> float:
    """Of computing all their prompts in full steps."""
    budget = candidate.max_batch_tokens
    num_tokens = sum(len(request.prompt) for request in requests)
    step_s = candidate.step_cost.step_s(Batch(0, (plain_chunk(0, 0, budget),)))
    return step_s * num_tokens / budget
