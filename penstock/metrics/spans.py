"""Spans on their way to a collector that speaks OpenTelemetry's protocol over HTTP. Their content is the caller's.

Spans leave on a thread of their own, and are lost if they cannot: no request waits for a collector.
"""

import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

FLUSH_S = 2.0
"""Time that spans get to leave at the end."""


def open_provider(endpoint: str, service: str, version: str) -> "TracerProvider":
    """`endpoint` is a collector's address; without a path, the usual one is meant."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            "--otlp-endpoint needs packages that are not installed; pip install 'penstock[trace]'"
        ) from error
    if urlsplit(endpoint).path in ("", "/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    resource = Resource.create({"service.name": service, "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=FLUSH_S)))
    return provider


def close_provider(provider: "TracerProvider") -> None:
    """Send what is left, if that can be done soon."""
    closing = threading.Thread(target=provider.shutdown, name="spans", daemon=True)
    closing.start()
    closing.join(FLUSH_S)


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
