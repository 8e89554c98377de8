"""What is supported of each dialect, as a page: made from the route table, the body types and what they refuse."""

import sys
from typing import Any

import msgspec

from penstock.service.server.anthropic import protocol as anthropic
from penstock.service.server.anthropic.dialect import DIALECT as ANTHROPIC
from penstock.service.server.app import ROUTES, dialect_of
from penstock.service.server.ollama import protocol as ollama
from penstock.service.server.ollama.dialect import DIALECT as OLLAMA
from penstock.service.server.openai import protocol as openai
from penstock.service.server.openai.dialect import DIALECT as OPENAI
from penstock.service.server.responses import protocol as responses

DIALECTS = (
    ("OpenAI", OPENAI, (openai.REFUSED, responses.REFUSED)),
    ("Anthropic", ANTHROPIC, (anthropic.REFUSED,)),
    ("Ollama", OLLAMA, (ollama.REFUSED,)),
)
OURS = ("/app/", "/livez", "/readyz", "/health", "/metrics", "/version", "/docs", "/openapi.json", "/assets", "/icon")
HEAD = """# What is supported, by dialect

Made by `python -m tools.dialects`; a test holds it to the code. Fields that stand nowhere here are ignored,
and named in the answer's `x-penstock-ignored` header; `strict=true` refuses them. Judge any server with `penstock conform URL`.
"""


def page() -> str:
    parts = [HEAD]
    for title, dialect, refused in DIALECTS:
        parts.append(f"## {title}\n\n| | path | | fields |\n|---|---|---|---|")
        for route in ROUTES:
            if (
                isinstance(dialect_of(route.path, False), type(dialect))
                and not route.path.startswith(OURS)
                and route.path != "/"
            ):
                parts.append(f"| {route.method} | `{route.path}` | {route.help} | {_fields(route.body)} |")
        parts.append("")
        known = {field: way_out for table in refused for field, way_out in table.items()}
        if known:
            parts.append(
                "Refused by name: " + "; ".join(f"`{field}` ({known[field]})" for field in sorted(known)) + ".\n"
            )
    return "\n".join(parts)


def _fields(body: Any) -> str:
    if body is None:
        return ""
    return ", ".join(
        f"**{field.encode_name}**" if field.required else field.encode_name for field in msgspec.structs.fields(body)
    )


if __name__ == "__main__":
    sys.stdout.write(page())
