"""The server's own counters, read before and after a run: what its prefix cache gave, and whether other clients used it."""

from dataclasses import astuple, dataclass

from penstock.metrics.page import parse_page, sum_of
from penstock.tools.bench.client.http import Client

HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total")
QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total", "sglang:prompt_tokens_total")
REQUESTS = ("vllm:request_success_total", "sglang:num_requests_total")
PREEMPTIONS = ("vllm:num_preemptions_total",)
METRICS_S = 30.0


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the server started, or what they grew by. None: it does not report it."""

    cache_hits: float | None = None
    """Prompt tokens found in the prefix cache."""
    cache_queries: float | None = None
    requests: float | None = None
    """Requests that ended."""
    preemptions: float | None = None

    def since(self, earlier: "Counters") -> "Counters":
        return Counters(*map(_difference, astuple(self), astuple(earlier)))


async def read_counters(client: Client, timeout_s: float = METRICS_S) -> Counters:
    """All None where the server shows no metrics."""
    try:
        status, body = await client.fetch("GET", "/metrics", timeout_s=timeout_s)
    except ConnectionError:
        return Counters()
    return parse_counters(body.decode("utf-8", "replace")) if status == 200 else Counters()


def parse_counters(text: str) -> Counters:
    """Sums over labels of those counters we know, from the text form that Prometheus reads."""
    page, families = parse_page(text), (HITS, QUERIES, REQUESTS, PREEMPTIONS)
    return Counters(*(next((sum_of(page, name) for name in names if name in page), None) for names in families))


def _difference(later: float | None, earlier: float | None) -> float | None:
    """None, too, where a counter fell: the server was restarted in between."""
    if later is None or earlier is None or not later >= earlier:
        return None
    return later - earlier
