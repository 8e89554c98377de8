"""What `penstock serve` says once it serves: where, what, how much it holds, and what to type next."""

import json
from collections.abc import Sequence

from penstock.amounts import format_bytes
from penstock.console.show import printable
from penstock.runtime.engine.machine import Facts
from penstock.service.config import ListenConfig, ServerConfig
from penstock.service.server.pool.resident import Resident
from penstock.service.webfiles import has_web_app

USER_TOKENS = 2048
"""A typical conversation, to tell capacity in users."""


def banner(facts: Facts, server: ServerConfig, port: int, phases: Sequence[tuple[str, float]], seconds: float) -> str:
    url = url_of(server, port)
    lines = ["", f"  Penstock serves {printable(facts.model)} at {url}/v1", ""]
    lines += [f"  {name:<18}{format_bytes(size):>12}" for name, size in facts.memory]
    lines += ["", f"  {capacity(facts)}", f"  started in {seconds:.1f} s{_phases(phases)}", ""]
    lines += ["  try it:", f"  {curl(facts, server, url)}", *_pages(url), ""]
    return "\n".join(lines)


def pool_banner(residents: Sequence[Resident], budget_bytes: int | None, server: ServerConfig, port: int) -> str:
    """For several models, before any is loaded."""
    url = url_of(server, port)
    room = "" if budget_bytes is None else f", together in {format_bytes(budget_bytes)}"
    lines = ["", f"  Penstock serves {len(residents)} models at {url}/v1, each loaded when asked for{room}", ""]
    for one in residents:
        lines.append(f"  {printable(one.name)}{'  (pinned)' if one.is_pinned else ''}")
    lines += ["", "  try it:", f"  {chat_curl(residents[0].name, server, url)}"]
    return "\n".join([*lines, *_pages(url), ""])


def capacity(facts: Facts) -> str:
    """What the cache holds, in words."""
    if not facts.can_generate:
        return f"texts of up to {facts.max_context:,} tokens become vectors of {facts.embedding_size} numbers"
    tokens = min(USER_TOKENS, facts.max_context)
    num_users = min(facts.num_cached_tokens // tokens, facts.max_sequences)
    users = f"about {num_users:,} users at {tokens:,} tokens each" if num_users else "less than one whole conversation"
    steps = f"; steps of up to {facts.max_batch_tokens:,} tokens" if facts.max_batch_tokens else ""
    return f"context {facts.max_context:,} tokens; cache for {facts.num_cached_tokens:,} tokens: {users}{steps}"


def curl(facts: Facts, server: ServerConfig, url: str) -> str:
    if not facts.can_generate:
        return f"curl {url}/v1/embeddings -H 'Content-Type: application/json' -d '{{\"input\": \"Hello!\"}}'"
    return chat_curl(facts.model, server, url)


def chat_curl(model: str, server: ServerConfig, url: str) -> str:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    key = " -H 'Authorization: Bearer YOUR_KEY'" if server.keys else ""
    quoted = body.replace("'", "'\\''")
    return f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{quoted}'"


def url_of(listen: ServerConfig | ListenConfig, port: int) -> str:
    host = listen.host.strip("[]")
    return f"{listen.tls.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _pages(url: str) -> list[str]:
    """What to open in a browser."""
    app = [f"  web app: {url}/"] if has_web_app() else []
    return [*app, f"  docs: {url}/docs"]


def _phases(phases: Sequence[tuple[str, float]]) -> str:
    return f" ({', '.join(f'{name} {seconds:.1f} s' for name, seconds in phases)})" if phases else ""
