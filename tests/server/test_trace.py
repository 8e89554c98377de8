"""Laws of spans: one a request, in its caller's trace, with the times of `Server-Timing` and no word of what was said."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.machine import PATIENCE_S
from tests.server.serving import serving, user

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
SECRET = "swordfish"


class Collector(ThreadingHTTPServer):
    """Remembers what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.raw: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def spans(self) -> list[Any]:
        requests = [ExportTraceServiceRequest.FromString(data) for data in self.raw]
        return [
            span
            for one in requests
            for group in one.resource_spans
            for part in group.scope_spans
            for span in part.spans
        ]


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        self.server.raw.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def values(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_every_request_for_work_is_one_span_with_its_times() -> None:
    with collecting() as collector:
        with serving("--otlp-endpoint", collector.url, model="oracle:step_ms=2") as server:
            body = {"messages": user(SECRET), "max_tokens": 20, "temperature": 0, "stop": [SECRET], "user": SECRET}
            whole = server.post("/v1/chat/completions", body, headers=PARENT)
            server.post("/v1/completions", {"prompt": [SECRET, "x"], "n": 2, "max_tokens": 3, "stream": True})
            server.post("/v1/chat/completions", {"messages": user(SECRET), "temperature": 9}, headers=PARENT)
            server.get("/v1/models")
            assert server.stop() == 0
        chat, text, refused = collector.spans
        assert SECRET.encode() not in b"".join(collector.raw)
        assert (chat.trace_id.hex(), chat.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
        assert (refused.trace_id.hex(), refused.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
        assert (len(text.trace_id), text.parent_span_id, text.trace_id.hex() != TRACE_ID) == (16, b"", True)
        assert [span.name for span in collector.spans] == [
            "chat oracle:step_ms=2",
            "text_completion oracle:step_ms=2",
            "chat oracle:step_ms=2",
        ]
        reported = values(chat)
        assert reported["gen_ai.usage.input_tokens"] == whole.json()["usage"]["prompt_tokens"]
        assert reported["gen_ai.usage.output_tokens"] == 20
        assert (reported["gen_ai.request.max_tokens"], reported["gen_ai.request.temperature"]) == (20, 0.0)
        assert reported["http.response.status_code"] == 200
        assert [one.string_value for one in reported["gen_ai.response.finish_reasons"].values] == ["length"]
        assert reported["penstock.request_id"] == whole.headers["x-request-id"]
        assert len(values(text)["gen_ai.response.finish_reasons"].values) == 4
        assert (values(refused)["http.response.status_code"], values(refused)["error.type"]) == (400, "400")
        check_times(chat, whole.headers["server-timing"])


def check_times(span: Any, server_timing: str) -> None:
    """Events lie end to end inside the span and last as long as the client was told."""
    timing = {name: float(value) for name, _, value in (part.partition(";dur=") for part in server_timing.split(", "))}
    assert [event.name for event in span.events] == ["queue", "prefill", "decode", "flush"]
    before_ns = span.start_time_unix_nano
    for event in span.events:
        duration_ms = event.attributes[0].value.double_value
        if event.name != "flush":  # the answer was still to be sent when the client was told
            assert duration_ms == pytest.approx(timing[event.name], abs=0.01)
        assert event.time_unix_nano >= before_ns
        before_ns = event.time_unix_nano
    assert before_ns <= span.end_time_unix_nano
    assert span.events[3].time_unix_nano - span.events[2].time_unix_nano == pytest.approx(
        timing["decode"] * 1e6, abs=1e5
    )


def test_a_collector_that_is_not_there_hurts_nobody() -> None:
    with serving("--otlp-endpoint", "http://127.0.0.1:9") as server:
        for _ in range(5):
            assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status_code == 200
        assert server.stop() == 0


def test_without_its_packages_the_flag_says_what_to_install() -> None:
    hidden = "import sys; sys.modules['opentelemetry.sdk'] = None; from penstock.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", hidden, "serve", "oracle:", "--port", "0", "--otlp-endpoint", "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2, done.stderr
    assert "pip install 'penstock[trace]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_of_it_is_imported_unasked() -> None:
    code = (
        "import sys, penstock.assembly.serving; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, check=False).returncode == 0
