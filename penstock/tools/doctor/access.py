"""What can keep the doctor from a server: rules over how its questions were met, before anything else can be judged."""

from penstock.tools.doctor.finding import ServiceLayer, Verdict
from penstock.tools.doctor.rule import Rule
from penstock.tools.doctor.signs import REFUSED, SILENT, UNINTELLIGIBLE, UNREACHABLE

ACCESS: tuple[Rule, ...] = (
    Rule(
        id="unreachable",
        layer=ServiceLayer.L5,
        verdict=Verdict.FAULT,
        weight=104,
        symptom="this address cannot be reached",
        condition=lambda signs: signs.metrics_status == UNREACHABLE,
        evidence=lambda signs: (
            "its name is not known, its network cannot be reached, or no connection came about in time"
        ),
        remedy="see that the name and the port are right, that its machine is up, and that no firewall lies between",
    ),
    Rule(
        id="refused",
        layer=ServiceLayer.L5,
        verdict=Verdict.FAULT,
        weight=102,
        symptom="no server listens at this address",
        condition=lambda signs: signs.metrics_status == REFUSED,
        evidence=lambda signs: "its machine refused the connection",
        remedy="start it with penstock serve, or give the --host and --port it was started with; if it ran a moment ago, "
        "read the last lines it printed",
    ),
    Rule(
        id="silent",
        layer=ServiceLayer.L5,
        verdict=Verdict.FAULT,
        weight=100,
        symptom="the server accepts connections but does not answer",
        condition=lambda signs: signs.metrics_status == SILENT,
        evidence=lambda signs: "connected, asked for /metrics, and no answer came in time",
        remedy="its process hangs, is stopped (state T in ps: kill -CONT) or gets no processor: look at it on its machine, "
        "and restart it if it does not come back",
    ),
    Rule(
        id="unintelligible",
        layer=ServiceLayer.L5,
        verdict=Verdict.FAULT,
        weight=99,
        symptom="the answer from this address is not understood",
        condition=lambda signs: signs.metrics_status == UNINTELLIGIBLE,
        evidence=lambda signs: "the connection broke off, or what came was no HTTP",
        remedy="see that the port is the server's and that http or https is what it speaks; behind a proxy, ask the "
        "server itself",
    ),
    Rule(
        id="locked",
        layer=ServiceLayer.L5,
        verdict=Verdict.FAULT,
        weight=98,
        symptom="the server refuses the doctor",
        condition=lambda signs: signs.metrics_status in (401.0, 403.0),
        evidence=lambda signs: f"/metrics answers {signs.metrics_status:.0f}",
        remedy="give the server's key with --api-key; after 403 serve with --allowed-host for the name it is called by",
    ),
    Rule(
        id="no-metrics",
        layer=ServiceLayer.L5,
        verdict=Verdict.FAULT,
        weight=96,
        symptom="the address answers but has no metrics",
        condition=lambda signs: signs.metrics_status >= 300.0 and signs.metrics_status not in (401.0, 403.0),
        evidence=lambda signs: f"/metrics answers {signs.metrics_status:.0f}",
        remedy="give the address of the server itself, not a proxy in front of it, and no path after the port",
    ),
)
"""Heaviest first."""
