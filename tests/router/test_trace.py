"""One trace across router and engines: the caller's, with a span for the request, for each replica asked, for each engine."""

from contextlib import ExitStack

import pytest

from tests.router.service import Wire, routing
from tests.router.test_failover import events
from tests.server.serving import serving, user
from tests.server.test_trace import PARENT, PARENT_ID, SECRET, TRACE_ID, collecting, values

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_request_is_one_trace_from_its_caller_to_the_engine_that_went_on_with_it():
    with collecting() as collector, ExitStack() as stack:
        telling = ("--otlp-endpoint", collector.url)
        servers = [stack.enter_context(serving(*telling, model="oracle:step_ms=5")) for _ in range(2)]
        wires = [Wire(int(server.url.rpartition(":")[2])) for server in servers]
        for wire in wires:
            stack.callback(wire.close)
        replicas = [word for wire in wires for word in ("--replica", f"http://127.0.0.1:{wire.port}")]
        flags = (*replicas, *telling, "--policy", "round-robin", "slow-start-s=0")
        service = stack.enter_context(routing(*flags, servers=servers))
        body = {"messages": user(SECRET), "max_tokens": 60, "temperature": 0}
        with service.http(headers=PARENT) as http:
            timing = http.post("/v1/chat/completions", json=body).headers["server-timing"]
            events(http, "/v1/chat/completions", body, 8, wires)
        assert service.stop() == 0
        for server in servers:
            assert server.stop() == 0
        parts = {part.strip().partition(";")[0] for part in timing.split(",")}
        assert parts >= {"queue", "prefill", "decode", "router", "network"}
        assert SECRET.encode() not in b"".join(collector.raw)
        spans = {span.span_id.hex(): span for span in collector.spans}
        assert {span.trace_id.hex() for span in spans.values()} == {TRACE_ID}
        requests = [span for span in spans.values() if span.parent_span_id.hex() == PARENT_ID]
        requests.sort(key=lambda span: span.start_time_unix_nano)
        assert [span.name.split()[0] for span in requests] == ["route", "route"]

        def under(parent):
            found = [span for span in spans.values() if span.parent_span_id == parent.span_id]
            return sorted(found, key=lambda span: span.start_time_unix_nano)

        calm, stormy = requests
        (asked,) = under(calm)
        assert [event.name for event in asked.events] == ["network"]
        (engine,) = under(asked)
        assert engine.name.startswith("chat ")
        assert values(calm)["gen_ai.usage.output_tokens"] == values(engine)["gen_ai.usage.output_tokens"] == 60
        first, second = under(stormy)
        assert values(first)["penstock.replica"] != values(second)["penstock.replica"]
        assert (first.status.code, second.status.code) == (2, 0), "the one that was cut off is in error"
        assert len(under(second)) == 1
        assert values(stormy)["gen_ai.usage.output_tokens"] == 60
