"""A request's way through the router as spans: one for the request, and under it one for each replica that was asked.

The engine's own span goes under the one of its replica, so that a trace shows the whole: waiting here, the network, the queue,
the prompt, the answer. Times and counts, never a word of what was said.
"""

import time
from typing import Any

from penstock.metrics.spans import close_provider, nanoseconds, open_provider
from penstock.service.marks import TokenCount
from penstock.service.router.proxy.incoming import Incoming


class RouterTracer:
    def __init__(self, endpoint: str, version: str) -> None:
        self._provider = open_provider(endpoint, "penstock-router", version)
        self._tracer = self._provider.get_tracer("penstock.router", version)
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._propagator = TraceContextTextMapPropagator()

    def begin(self, request: Incoming, model: str) -> "RequestTrace":
        """In the client's trace, if it sends one."""
        from opentelemetry.trace import SpanKind

        headers = request.headers
        carrier = {name: headers[name.encode()].decode("latin-1") for name in NAMES if name.encode() in headers}
        span = self._tracer.start_span(
            f"route {model or 'default'}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.request.model": model or "default",
                "http.request.method": request.method,
                "penstock.request_id": request.request_id.decode("latin-1"),
            },
            start_time=_at(request.arrival_s),
        )
        return RequestTrace(self._tracer, span)

    def close(self) -> None:
        close_provider(self._provider)


class RequestTrace:
    def __init__(self, tracer: Any, span: Any) -> None:
        self._tracer = tracer
        self._span = span

    def attempt(self, replica: str, why: str, num_tried: int, now: float) -> "AttemptTrace":
        from opentelemetry.trace import SpanKind, set_span_in_context

        span = self._tracer.start_span(
            f"ask {replica}",
            context=set_span_in_context(self._span),
            kind=SpanKind.CLIENT,
            attributes={"penstock.replica": replica, "penstock.why": why, "penstock.tries": num_tried},
            start_time=_at(now),
        )
        return AttemptTrace(span)

    def end(self, outcome: str, status: int, count: TokenCount | None, now: float) -> None:
        self._span.set_attribute("penstock.outcome", outcome)
        if status:
            self._span.set_attribute("http.response.status_code", status)
        if count is not None:
            self._span.set_attribute("gen_ai.usage.input_tokens", count.num_prompt)
            self._span.set_attribute("gen_ai.usage.output_tokens", count.num_output)
            self._span.set_attribute("gen_ai.usage.cache_read.input_tokens", count.num_cached)
        _end(self._span, status >= 500 or outcome == "failed", now)


class AttemptTrace:
    def __init__(self, span: Any) -> None:
        self._span = span

    @property
    def parent(self) -> bytes:
        """What the replica is sent: its span goes under ours."""
        context = self._span.get_span_context()
        return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)

    def answered(self, status: int, network_s: float | None, now: float) -> None:
        """The head of the answer is there; `network_s` of the time until then was nobody's work."""
        self._span.set_attribute("http.response.status_code", status)
        if network_s is not None:
            self._span.add_event("network", {"duration_ms": network_s * 1000}, timestamp=_at(now))

    def end(self, is_good: bool | None, now: float) -> None:
        _end(self._span, is_good is False, now)


NAMES = ("traceparent", "tracestate")


def _end(span: Any, has_failed: bool, now: float) -> None:
    from opentelemetry.trace import Status, StatusCode

    if has_failed:
        span.set_status(Status(StatusCode.ERROR))
    span.end(_at(now))


def _at(monotonic_s: float) -> int:
    """On the clock of the world."""
    return nanoseconds(monotonic_s + time.time() - time.monotonic())
