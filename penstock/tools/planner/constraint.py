"""What keeps a candidate from carrying more, in words, with the evidence of the run in which it failed; and what would help."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.errors import ConfigError
from penstock.runtime.core.batch import Batch
from penstock.tools.cost.cost import plain_chunk
from penstock.tools.cost.measured.ramps import MeasuredCost
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.capacity import Capacity, CapacityTrial
from penstock.tools.planner.demand import Sizes, SloTarget
from penstock.tools.planner.space import with_kv
from penstock.tools.planner.steady import Steady, steady_batch

Kind = Literal["latency", "kv", "sequences", "prompts", "steps"]
SHARE = 0.1
"""Of moments, from which on something that holds requests back is called the cause."""
FULL = 0.9
"""Share of blocks held at which a request that waits is taken to wait for blocks."""
MOST_BUDGET = 16_384
MOST_SEQUENCES = 4096


@dataclass(frozen=True, slots=True)
class Constraint:
    kind: Kind
    words: str
    remedy: Candidate | None = None
    """The same candidate with the one change that should help; None if none of its settings would."""
    remedy_words: str = ""


class Moments(NamedTuple):
    """Shares of a run's moments, warm-up apart, in which requests waited for a block, or for a row."""

    blocks: float
    rows: float


def moments(run: CapacityTrial, candidate: Candidate) -> Moments:
    samples = [sample for replica in run.result.replicas for sample in replica.history]
    judged = [sample for sample in samples if sample.time_s >= run.start_s]
    if not judged:
        return Moments(0.0, 0.0)
    waiting = [sample for sample in judged if sample.num_waiting]
    num_rows = sum(sample.num_running >= candidate.max_sequences for sample in waiting)
    num_blocks = sum(
        sample.num_running < candidate.max_sequences and sample.kv_usage_fraction >= FULL for sample in waiting
    )
    return Moments(num_blocks / len(judged), num_rows / len(judged))


def find_constraint(
    candidate: Candidate, capacity: Capacity, steady: Steady, sizes: Sizes, target: SloTarget
) -> Constraint:
    run = capacity.beyond
    if capacity.at is None:
        return _latency(run, target)
    if run is None or run.good_fraction >= target.fraction:
        return _of_bound(candidate, steady, sizes, target)
    found = moments(run, candidate)
    at = f"at {run.rate:.2f} requests/s"
    if found.blocks >= SHARE and found.blocks >= found.rows:
        evidence = f"{at} requests waited for free blocks in {100 * found.blocks:.0f} % of moments"
        if run.result.num_preemptions:
            evidence += f", {run.result.num_preemptions:,} were pushed out"
        return _kv(candidate, evidence)
    if found.rows >= SHARE:
        return _sequences(candidate, f"{at} requests waited for one of them in {100 * found.rows:.0f} % of moments")
    if run.late_ttft_fraction >= run.late_tpot_fraction:
        evidence = f"{at} {100 * run.late_ttft_fraction:.1f} % of first tokens were late"
        return _prompts(candidate, evidence, sizes)
    evidence = f"{at} {100 * run.late_tpot_fraction:.1f} % of answers were too slow from token to token"
    return _steps(candidate, evidence, steady, sizes)


def _of_bound(candidate: Candidate, steady: Steady, sizes: Sizes, target: SloTarget) -> Constraint:
    """No run failed: the steady state itself says where it ends."""
    evidence = f"a steady state ends at about {steady.rate:.3g} requests/s, {steady.num_sequences} sequences at once"
    if steady.num_sequences >= candidate.max_sequences - 1:
        return _sequences(candidate, evidence)
    if target.slo.tpot_s is not None and steady.step_s > 0.95 * target.slo.tpot_s:
        return _steps(candidate, f"{evidence}, {1e3 * steady.step_s:.1f} ms a step", steady, sizes)
    if steady.num_sequences >= candidate.sizing.num_sequences(sizes.mean_held) - 1:
        return _kv(candidate, evidence)
    return _prompts(candidate, evidence, sizes)


def _latency(run: CapacityTrial | None, target: SloTarget) -> Constraint:
    if run is None:
        return Constraint("latency", "Latency: not even one request at a time is fast enough from token to token")
    summary = run.summary
    late = f"{100 * (1.0 - run.good_fraction):.1f} % of requests miss the SLO with no other request"
    times = f"p95 of TTFT is {1e3 * summary.ttft.p95:,.0f} ms, of TPOT {1e3 * summary.tpot.p95:,.1f} ms"
    words = f"Latency: {late} ({times}); more of these devices do not help, faster ones or a larger tensor group do"
    return Constraint("latency", words)


def _kv(candidate: Candidate, evidence: str) -> Constraint:
    words = f"KV memory: {evidence}"
    if candidate.measured is not None or candidate.kv == "fp8":
        return Constraint("kv", words)
    return Constraint("kv", words, with_kv(candidate, "fp8"), "FP8 KV")


def _sequences(candidate: Candidate, evidence: str) -> Constraint:
    words = f"The limit of {candidate.max_sequences} sequences at once: {evidence}"
    limit = min(4 * candidate.max_sequences, MOST_SEQUENCES)
    return _limited("sequences", words, candidate, limit, candidate.max_batch_tokens, f"--max-sequences {limit}")


def _prompts(candidate: Candidate, evidence: str, sizes: Sizes) -> Constraint:
    length = max(1, round(sizes.mean_prompt))
    alone_s = candidate.step_cost.step_s(Batch(0, (plain_chunk(0, 0, length),)))
    words = f"Computing prompts: {evidence}; one of mean length takes {1e3 * alone_s:.0f} ms by itself"
    budget = min(4 * candidate.max_batch_tokens, MOST_BUDGET)
    return _limited("prompts", words, candidate, candidate.max_sequences, budget, f"--max-batch-tokens {budget}")


def _steps(candidate: Candidate, evidence: str, steady: Steady, sizes: Sizes) -> Constraint:
    words = f"The time of a step: {evidence}"
    if candidate.measured is None:
        words += f"; {_where(candidate, steady, sizes)}"
    budget = candidate.max_batch_tokens // 4
    if budget < candidate.max_sequences:
        return Constraint("steps", words)
    return _limited("steps", words, candidate, candidate.max_sequences, budget, f"--max-batch-tokens {budget}")


def _where(candidate: Candidate, steady: Steady, sizes: Sizes) -> str:
    """The parts of a step in the steady state, the longest first."""
    cost = candidate.roofline
    parts = cost.parts(cost.work(steady_batch(max(steady.num_sequences, 1), sizes)))._asdict()
    total = sum(parts.values())
    names = {"linears": "weights of layers", "attention": "KV read and scored", "traffic": "talk between devices"}
    longest = sorted(parts.items(), key=lambda part: -part[1])[:2]
    return "of a step " + ", ".join(
        f"{100 * value / total:.0f} % is {names.get(name, name)}" for name, value in longest
    )


def _limited(
    kind: Kind, words: str, candidate: Candidate, max_sequences: int, max_batch_tokens: int, remedy: str
) -> Constraint:
    """Remedied by other limits, if they are others and still fit. Memory of a measured engine stays as it was measured."""
    changed = candidate.with_limits(max_sequences, max_batch_tokens)
    try:
        helps = changed.key != candidate.key and changed.sizing.num_blocks
    except ConfigError:
        helps = False
    return Constraint(kind, words, changed, remedy) if helps else Constraint(kind, words)


def extrapolated_fraction(candidate: Candidate) -> float:
    """Of the steps asked so far, those beyond what was measured."""
    cost = candidate.step_cost
    return cost.num_outside / max(cost.num_asked, 1) if isinstance(cost, MeasuredCost) else 0.0
