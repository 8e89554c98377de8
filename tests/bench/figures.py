"""Runs and reports made by hand, for those who judge, draw and compare them."""

from dataclasses import replace
from typing import Any

from penstock.metrics.summary import Slo
from penstock.tools.bench.client.answer import Answer, ReportedUsage
from penstock.tools.bench.client.counters import Counters
from penstock.tools.bench.client.health import Health
from penstock.tools.bench.client.prompts import PromptWords, Segment
from penstock.tools.bench.client.target import ServerDialect, TargetServer
from penstock.tools.bench.knee import Knee
from penstock.tools.bench.load import MeasuredLoad
from penstock.tools.bench.plan import Ask, TrafficPlan, Turn
from penstock.tools.bench.report.figures import Figures, figures_of
from penstock.tools.bench.report.flags import flags_of
from penstock.tools.bench.report.report import report_of
from penstock.tools.bench.session import BenchRun

TARGET = TargetServer("model", "chat", ServerDialect(), PromptWords((" a",), (1.0,), overhead=2), True, True, "stub")
HEALTHY = Health(lag_p50_s=0.0001, lag_p99_s=0.001, lag_max_s=0.002, cpu_fraction=0.1)
COUNT = 200


def answer(number: int, ttft_s: float = 0.1, gap_s: float = 0.02, tokens: int = 5, error: str = "") -> Answer:
    one = Answer(number, number * 0.1, 50, tokens, sent_s=number * 0.1, status=500 if error else 200, error=error)
    one.piece_times.extend(one.scheduled_s + ttft_s + gap_s * piece for piece in range(0 if error else tokens))
    one.end_s = one.scheduled_s + ttft_s + gap_s * tokens
    one.finish_reason, one.ask = "length", number
    one.usage = ReportedUsage(prompt_tokens=50, completion_tokens=tokens)
    return one


def measured(answers: list[Answer] | None = None, **changes: Any) -> MeasuredLoad:
    found = answers or [answer(number, ttft_s=0.1 + 0.001 * (number % 10)) for number in range(COUNT)]
    end_s = max(one.end_s or 0.0 for one in found)
    return replace(MeasuredLoad(answers=tuple(found), duration_s=end_s, health=HEALTHY, num_unsent=0), **changes)


def figures(one: MeasuredLoad | None = None, rate: float | None = 10.0, server: Counters = Counters()) -> Figures:  # noqa: B008
    plan = TrafficPlan(tuple(Ask(0.1 * n, (Turn((Segment(str(n), 50),), 5),)) for n in range(COUNT)))
    return figures_of(one or measured(), plan, TARGET, Slo(ttft_s=0.5), server, rate)


def run(one: MeasuredLoad | None = None, rate: float | None = 10.0) -> BenchRun:
    found = figures(one, rate)
    return BenchRun(found, tuple(flags_of(found)), (one or measured()).answers)


def report(
    runs: list[BenchRun], workload: dict[str, Any] | None = None, knee: Knee | None = None, **target: Any
) -> dict[str, Any]:
    return report_of(
        runs,
        target=replace(TARGET, **target),
        url="http://127.0.0.1:1",
        asked={"target": {"slo": "ttft<500ms"}},
        load="40 requests at 10/s (poisson)",
        workload=workload or {"load": {"rate": 10.0}, "seed": 0},
        client={"system": "Linux x86_64", "ended": "2026-01-01T00:00:00Z"},
        knee=knee,
        with_rows=True,
    )
