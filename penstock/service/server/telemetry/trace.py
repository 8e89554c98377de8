"""A span a request for a collector that speaks OpenTelemetry's protocol: times and counts, never a word of what was said.

A span is made when its request is over, from the same numbers as `Server-Timing`, so that nothing is open meanwhile and
nobody waits for a collector: spans leave on a thread of their own, and are lost if they cannot.
"""

import time
from collections.abc import Mapping
from typing import Any

from penstock.metrics.spans import close_provider, nanoseconds, open_provider
from penstock.service.server.calls.call import Call
from penstock.service.server.calls.usage import usage_of
from penstock.service.server.http.exchange import exchange_of

PARTS = ("queue", "prefill", "decode", "flush")
"""Of a request's time, in order."""
ASKED = ("temperature", "top_p", "top_k", "max_tokens", "seed")
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}


class SpanTracer:
    def __init__(self, endpoint: str, version: str) -> None:
        self._provider = open_provider(endpoint, "penstock", version)
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = self._provider.get_tracer("penstock", version)
        self._propagator = TraceContextTextMapPropagator()

    def report(self, scope: Mapping[str, Any], route: str, status: int, start_s: float, model: str) -> None:
        """A request is over. `start_s` is on the monotonic clock, as all our times."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        since_epoch_s = time.time() - time.monotonic()
        operation = OPERATIONS.get(route, route.rpartition("/")[2])
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        exchange = exchange_of(scope)
        call: Call | None = exchange.call
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "penstock",
            "gen_ai.request.model": model,
            "http.request.method": scope["method"],
            "http.route": route,
            "penstock.request_id": exchange.name,
        }
        if status:
            attributes["http.response.status_code"] = status
        error = str(status) if status >= 400 else ""
        if call is not None:
            attributes |= _asked(call) | _outcome(call)
            error = error or next((writer.failure.reason.value for writer in call.writers if writer.failure), "")
        if error:
            attributes["error.type"] = error
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=nanoseconds(start_s + since_epoch_s),
        )
        if call is not None:
            at_s = call.arrival_s + since_epoch_s
            for part in PARTS:
                duration_ms = exchange.timings[f"{part}_ms"]
                span.add_event(part, {"duration_ms": duration_ms}, timestamp=nanoseconds(at_s))
                at_s += duration_ms / 1000
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(nanoseconds(time.monotonic() + since_epoch_s))

    def close(self) -> None:
        """Send what is left, if that can be done soon."""
        close_provider(self._provider)


def _asked(call: Call) -> dict[str, Any]:
    params = call.requests[0].params
    asked = {name: getattr(params, name) for name in ASKED} | {"choice.count": params.n}
    return {f"gen_ai.request.{name}": value for name, value in asked.items() if value is not None}


def _outcome(call: Call) -> dict[str, Any]:
    usage = usage_of(call)
    reasons = [writer.finish_reason or (writer.failure and writer.failure.reason.value) for writer in call.writers]
    return {
        "gen_ai.response.finish_reasons": [reason or "cancelled" for reason in reasons],
        "gen_ai.usage.input_tokens": usage.num_prompt,
        "gen_ai.usage.output_tokens": usage.num_output,
        "gen_ai.usage.cache_read.input_tokens": usage.num_cached,
        "gen_ai.usage.reasoning.output_tokens": usage.num_reasoning,
    }
