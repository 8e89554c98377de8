"""Checklists: what must be true before production and before a load test is believed, with the evidence and the remedy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckItem:
    id: str
    text: str
    evidence: str
    """What shows that it holds; a command where there is one."""
    remedy: str


_URL = "http://127.0.0.1:8000"

PRODUCTION = (
    CheckItem(
        "spec",
        "targets are percentiles",
        "an SLO for p95 of TTFT and TPOT",
        "penstock plan --slo 'ttft<500ms,tpot<50ms'",
    ),
    CheckItem(
        "users",
        "users at p95 length fit, KV counted",
        "penstock plan: users at p95",
        "fewer users, --kv fp8, more devices",
    ),
    CheckItem("caps", "contexts are capped", "--max-context is set", "--max-context at p99 of use"),
    CheckItem(
        "queue",
        "the queue is bounded and sheds with Retry-After",
        "--max-waiting; a 429 under overload",
        "--max-waiting",
    ),
    CheckItem("ready", "readiness is a real token", f"GET {_URL}/readyz", "probe /readyz, not a TCP port"),
    CheckItem(
        "alive", "liveness is patient", "its limit is above load time and longest step", "startup probe; --hang-s"
    ),
    CheckItem("drain", "a stop drains", "SIGTERM under load loses nothing", "--drain-s above E2E p99"),
    CheckItem(
        "watched",
        "TTFT, ITL, E2E p50-p99, success, queue, KV, preemptions, $/M are watched",
        f"GET {_URL}/metrics",
        "Prometheus",
    ),
    CheckItem(
        "engine", "engine-only times stand beside end-to-end ones", "penstock bench beside /metrics", "record both"
    ),
    CheckItem("pinned", "versions are pinned", "image digest, constraints, model revision", "pin them"),
    CheckItem(
        "rolling",
        "an update rolls without loss",
        "bench during an update: no failures",
        "drain, then replace one by one",
    ),
    CheckItem(
        "cold",
        "the cold start is known",
        "penstock calc coldstart; a timed start",
        "weights near the device, warm spares",
    ),
    CheckItem(
        "quality",
        "quality is known by task class",
        "an evaluation of each class",
        "evaluate before and after each change",
    ),
    CheckItem("keys", "callers have keys", "a request without one is refused", "--api-key"),
    CheckItem(
        "texts",
        "no text of prompts in logs",
        "grep the logs for a marker you sent",
        "--record keeps times and counts only",
    ),
    CheckItem("call", "somebody is on call", "a name, a page, a runbook", "name one"),
)

LOAD_TEST = (
    CheckItem("lengths", "lengths are real ones", "a trace, or measured distributions", "penstock bench --trace"),
    CheckItem(
        "arrivals",
        "arrivals come in bursts or from a trace",
        "--burstiness above 1, or --trace",
        "penstock bench --burstiness 2",
    ),
    CheckItem(
        "open", "open loop, past the knee", "latency counts from when a request was due", "penstock bench --find-knee"
    ),
    CheckItem("cold", "cold and warm runs are reported apart", "cache hits beside the figures", "--warm-up; two runs"),
    CheckItem(
        "fresh",
        "prompts are new to the cache",
        "cached share 0 where nothing is shared",
        "penstock bench makes them new",
    ),
    CheckItem("compare", "before and after each change", "two reports", "penstock bench compare a.json b.json"),
    CheckItem("curve", "the curve over batches is known", "several --concurrency", "penstock bench throughput"),
    CheckItem(
        "long", "a 10,000-token prompt among streams", "ITL p99 while it is read", "--prompts file: with one such"
    ),
    CheckItem(
        "overload",
        "ten times the load",
        "429 with Retry-After, no crash",
        "penstock bench --rate at ten times the knee",
    ),
    CheckItem(
        "killed", "the engine is killed", "it is replaced; every request ends", "kill -9 of the engine's process"
    ),
    CheckItem("slow", "slow readers", "others are not slowed", "--stall-s"),
    CheckItem("hours", "hours at rho .7", "memory and latency stay flat", "penstock bench --duration-s 14400"),
    CheckItem("predicted", "predicted stands beside measured", "penstock plan verify", "calibrate: penstock profile"),
)

CHECKLISTS: Mapping[str, tuple[CheckItem, ...]] = {"production": PRODUCTION, "load-test": LOAD_TEST}


def checklists_data() -> dict[str, Any]:
    return {name: [asdict(item) for item in items] for name, items in CHECKLISTS.items()}
