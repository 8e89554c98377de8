"""`penstock doctor`: what is wrong with this machine, or with a server that runs, in which layer, and what to do.

Looks and lays out; the judgements are `penstock.tools.doctor`'s.
"""

import errno
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from penstock.cli.fleet.guided import guide
from penstock.cli.fleet.reach import check_address
from penstock.cli.fleet.watch import INSIDE, print_router, replica_data, router_figures
from penstock.cli.plan.model import describe
from penstock.cli.serve import KEY_VARIABLE
from penstock.console.show import print_json, print_table, printable
from penstock.errors import ConfigError
from penstock.fields import check, leaf
from penstock.metrics.page import Page, parse_page
from penstock.runtime.core.batch import Batch
from penstock.tools.cost import hardware
from penstock.tools.cost.cost import decode_chunks, plain_chunk
from penstock.tools.cost.precision import precision_of
from penstock.tools.cost.roofline import NO_OVERHEAD, Roofline
from penstock.tools.doctor.checks import examine
from penstock.tools.doctor.finding import Finding, Verdict
from penstock.tools.doctor.routing import RouterSigns, diagnose_router, is_router, router_signs
from penstock.tools.doctor.rule import Diagnosis, diagnose
from penstock.tools.doctor.rules import RULES
from penstock.tools.doctor.signs import REFUSED, SILENT, UNINTELLIGIBLE, UNREACHABLE, Look, Signs, signs_of
from penstock.tools.measure.environment import look_around

TIMEOUT_S = 5.0
HASTY_S = 0.25
"""For each further question to a server that has left one unanswered."""
LEAST_STATUS = 100.0
NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL)
FAULT_STATUS = 1
WRONG_FIRST = (Verdict.FAULT, Verdict.WARNING, Verdict.OK)


@dataclass(frozen=True, slots=True)
class Config:
    """Find what is wrong, in which layer, and what to do about it.

    Without URL this machine is examined; with it the server or router there, by its metrics alone. Exit status 1: a fault is
    there.
    """

    url: str = field(default="", metadata={"positional": True})
    """Address of a running server or router to examine, for example http://127.0.0.1:8000"""
    api_key: str = ""
    """Key the server asks for; PENSTOCK_API_KEY holds one too"""
    window_s: float = leaf(10.0, 0.1, 3600, unit="seconds")
    """Seconds between the two looks at a server"""
    hardware: str = ""
    """Device the server runs on, by name (h100-sxm, l4, ...): tells how fast its steps could be"""
    model: str = ""
    """With --hardware: the model it serves, by name (llama-3.1-8b, ...) or the path of a config.json"""
    weights: Literal["bf16", "fp16", "fp32", "fp8", "int8", "int4"] = "bf16"
    """With --hardware: how the server holds weights"""
    loop: bool = False
    """Go on: after each diagnosis do what it says, and it looks again and tells what changed, until nothing is wrong"""
    port: int = leaf(8000, 0, 65535)
    """Port on this machine that should be free"""
    json: bool = False
    """Print JSON for machines"""

    def __post_init__(self) -> None:
        check(self)
        if self.url:
            check_address(self.url)
        if self.loop and self.json:
            raise ConfigError("--loop talks with a person; leave --json")
        if bool(self.hardware) != bool(self.model):
            raise ConfigError(
                "--hardware and --model go together: one says how fast, the other how much there is to do"
            )


class Examined(NamedTuple):
    """What was found, and the rest of what is told: as values for machines, and on a screen."""

    findings: Sequence[Finding]
    data: dict[str, Any]
    show: Callable[[], None]

    @property
    def worst(self) -> Verdict:
        return min((one.verdict for one in self.findings), key=WRONG_FIRST.index, default=Verdict.OK)


def run(config: Config) -> int:
    if config.loop:
        return guide(config.url, lambda: _wrong(config), config.window_s)
    found = examined(config)
    if config.json:
        layers = ({"layer": one.layer.name, "layer_name": one.layer.value} for one in found.findings)
        findings = [asdict(one) | layer for one, layer in zip(found.findings, layers)]
        print_json({"verdict": found.worst, "findings": findings} | found.data)
    else:
        found.show()
    return FAULT_STATUS if found.worst is Verdict.FAULT else 0


def examined(config: Config) -> Examined:
    """This machine, or the server or router at an address."""
    if not config.url:
        findings = examine(look_around(config.port))
        return Examined(findings, {}, lambda: _print_machine(findings))
    floor = Floor(config) if config.hardware else None  # a name that is not known is told before the wait
    server = Patient(config)
    before, after, window_s = server.watch(config.window_s)
    asked = {"url": config.url, "version": server.version}
    if is_router(after.page):
        return _router(asked, router_signs(before.page, after.page, window_s))
    signs = signs_of(before, after, window_s)
    return _server(asked, signs if floor is None else replace(signs, floor_s=floor.step_s(signs)))


def _wrong(config: Config) -> tuple[Finding, ...]:
    """What is wrong now, the likeliest cause first: checks of a machine are no chain of causes, so there the worst is."""
    wrong = tuple(one for one in examined(config).findings if one.remedy)
    return wrong if config.url else tuple(sorted(wrong, key=lambda one: WRONG_FIRST.index(one.verdict)))


def _print_machine(findings: Sequence[Finding]) -> None:
    rows = [(one.verdict, f"{one.layer.name} {one.layer.value}", one.symptom, one.evidence) for one in findings]
    print_table(("", "layer", "", "found"), rows)
    for finding in sorted(findings, key=lambda one: WRONG_FIRST.index(one.verdict)):
        if finding.remedy:
            print(f"\n{finding.verdict}: {finding.symptom}\n    {printable(finding.remedy)}")
    if all(one.verdict is Verdict.OK for one in findings):
        print("\nnothing is wrong with this machine")


def _router(asked: dict[str, str], signs: RouterSigns) -> Examined:
    findings = diagnose_router(signs)
    found = {"kind": "router", "signs": router_figures(signs), "replicas": replica_data(signs), "unexamined": INSIDE}

    def show() -> None:
        _print_findings(findings, "nothing is wrong with this router, as far as it can see")
        print_router(f"{asked['url']} {asked['version']}, a router, over {signs.window_s:.1f} s", signs)

    return Examined(findings, asked | found, show)


def _server(asked: dict[str, str], signs: Signs) -> Examined:
    diagnosis = diagnose(signs, RULES)
    figures = {name: value for name, value in asdict(signs).items() if name != "missing"}
    data = asked | {
        "signs": {name: value if math.isfinite(value) else None for name, value in figures.items()},
        "unexamined": {rule.id: list(names) for rule, names in diagnosis.unexamined},
    }
    title = f"{asked['url']} {asked['version']}, over {signs.window_s:.1f} s"
    return Examined(diagnosis.findings, data, lambda: _print_server(title, signs, diagnosis))


class Patient:
    """Asked directly: through no proxy, and sent nowhere else, for that is what is being examined."""

    def __init__(self, config: Config) -> None:
        self.version = ""
        self._url = config.url.rstrip("/")
        key = config.api_key or os.environ.get(KEY_VARIABLE, "")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def watch(self, window_s: float) -> tuple[Look, Look, float]:
        """Two looks, and the seconds between them; one alone at a server that shows no metrics."""
        before, before_s = self.look(), time.monotonic()
        if before.statuses["/metrics"] != 200:
            return before, before, window_s
        if sys.stderr.isatty():
            print(f"penstock: watching for {window_s:g} s", file=sys.stderr)
        time.sleep(window_s)
        return before, self.look(), time.monotonic() - before_s

    def look(self) -> Look:
        """Metrics last, so that the time since they were read begins with our return."""
        statuses: dict[str, float] = {}
        seconds: dict[str, float] = {}
        page: Page = {}
        timeout_s = TIMEOUT_S
        for path in ("/version", "/health", "/readyz", "/metrics"):
            start_s = time.monotonic()
            statuses[path], body = self._get(path, timeout_s)
            if statuses[path] < LEAST_STATUS:
                timeout_s = HASTY_S
                continue
            seconds[path] = time.monotonic() - start_s
            if statuses[path] == 200 and path == "/metrics":
                page = parse_page(body)
            if statuses[path] == 200 and path == "/version":
                self.version = _version_in(body)
        return Look(statuses, seconds, page)

    def _get(self, path: str, timeout_s: float) -> tuple[float, str]:
        from penstock.service.upstream.ask import ask

        try:
            answer = ask(self._url + path, headers=self._headers, timeout_s=timeout_s)
        except OSError as error:
            return why_unanswered(error), ""
        return answer.status, answer.body.decode("utf-8", "replace") if answer.status == 200 else ""


def why_unanswered(error: OSError) -> float:
    """No status came. What fails before there is a connection comes as the cause of an `UnreachableError`."""
    from penstock.service.upstream.ask import UnreachableError

    is_connected = not isinstance(error, UnreachableError)
    reason = error if is_connected else error.__cause__
    if isinstance(reason, ConnectionRefusedError):
        return REFUSED
    if isinstance(reason, TimeoutError):
        return SILENT if is_connected else UNREACHABLE
    is_no_way = isinstance(reason, socket.gaierror) or getattr(reason, "errno", None) in NO_WAY
    return UNREACHABLE if is_no_way else UNINTELLIGIBLE


class Floor:
    """What a step takes at the limit of the hardware named."""

    def __init__(self, config: Config) -> None:
        ceilings = hardware.find(config.hardware).achievable
        precision = precision_of(config.weights, "bf16", ceilings)
        self._roofline = Roofline(describe(config.model).spec, ceilings, precision, NO_OVERHEAD)

    def step_s(self, signs: Signs) -> float:
        """A mean step: the sequences it gave tokens to, each with its share of the cache, and the prompt tokens it took."""
        steps_per_s = signs.steps_per_s
        per_step = signs.output_tokens_per_s / steps_per_s if steps_per_s > 0 else signs.num_running
        num_sequences = _whole(per_step, least=1)
        context = _whole(signs.kv_usage_fraction * signs.num_kv_tokens / num_sequences, least=1)
        hits = 0.0 if math.isnan(signs.hit_fraction) else signs.hit_fraction
        num_prompt = _whole(signs.prompt_tokens_per_s * (1.0 - hits) / steps_per_s if steps_per_s > 0 else 0.0, least=0)
        chunks = decode_chunks(num_sequences, context)
        if num_prompt:
            chunks.append(plain_chunk(num_sequences, 0, num_prompt, samples=False))
        return self._roofline.step_s(Batch(0, tuple(chunks)))


def _whole(number: float, *, least: int) -> int:
    return max(round(number), least) if math.isfinite(number) else least


def _version_in(body: str) -> str:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(found.get("version", "")) if isinstance(found, dict) else ""


def _print_server(title: str, signs: Signs, diagnosis: Diagnosis) -> None:
    idle = f", as far as an idle one shows: it computed nothing in these {signs.window_s:.1f} s; look again under load"
    _print_findings(diagnosis.findings, f"nothing is wrong with this server{idle if signs.is_idle else ''}")
    if signs.metrics_status != 200:
        return
    figures = {name: _figure(signs, sign, scale) for name, (sign, scale) in VITAL_SIGNS.items()}
    print_table(("", printable(title)), [(name, figure) for name, figure in figures.items() if figure is not None])
    if diagnosis.unexamined:
        lacking = sorted({name for _, names in diagnosis.unexamined for name in names} - {"--hardware"})
        rules = ", ".join(rule.id for rule, names in diagnosis.unexamined if set(names) - {"--hardware"})
        if lacking:
            print(f"\nnot exposed: {printable(', '.join(lacking))}\nso not examined: {rules}")


def _print_findings(findings: Sequence[Finding], otherwise: str) -> None:
    for finding in findings:
        print(f"{finding.verdict}: {finding.layer.name} {finding.layer.value}: {finding.symptom}")
        print(f"    seen: {printable(finding.evidence)}\n    do:   {printable(finding.remedy)}\n")
    if not findings:
        print(f"{otherwise}\n")


def _figure(signs: Signs, sign: str, scale: float) -> object:
    value = scale * float(getattr(signs, sign))
    if math.isnan(value):
        return "not exposed" if sign in signs.missing else None
    return value


VITAL_SIGNS: dict[str, tuple[str, float]] = {
    "running": ("num_running", 1),
    "waiting": ("num_waiting", 1),
    "KV cache, %": ("kv_usage_fraction", 100),
    "prompt tokens/s": ("prompt_tokens_per_s", 1),
    "output tokens/s": ("output_tokens_per_s", 1),
    "requests ended/s": ("ended_per_s", 1),
    "refused/s": ("refused_per_s", 1),
    "preemptions/s": ("preemptions_per_s", 1),
    "sequences a step": ("step_sequences", 1),
    "KV held but empty, %": ("kv_waste_fraction", 100),
    "goodput by the chat SLO, %": ("good_fraction", 100),
    "$ a 1,000 tokens": ("dollars_per_1k", 1),
    "$ a 1,000 requests": ("dollars_per_request", 1000),
    "prefix cache hits, %": ("hit_fraction", 100),
    "queue, ms in the mean": ("queue_mean_s", 1000),
    "TTFT p50, ms": ("ttft_p50_s", 1000),
    "TTFT p95, ms": ("ttft_p95_s", 1000),
    "ITL p50, ms": ("itl_p50_s", 1000),
    "ITL p99, ms": ("itl_p99_s", 1000),
    "MFU, %": ("mfu", 100),
    "MBU, %": ("mbu", 100),
    "energy, J a token": ("energy_per_token_j", 1),
    "energy, J a request": ("energy_per_request_j", 1),
    "others' processor time, %": ("others_fraction", 100),
    "roofline, ms a step": ("floor_s", 1000),
    "engines replaced": ("num_restarts", 1),
}
