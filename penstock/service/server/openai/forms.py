"""The form of an answer as OpenAI's bodies ask for it, and in the words of vLLM and llama.cpp, which clients send too."""

from collections.abc import Callable
from typing import Any

from penstock.service.server.generation import TEXT, OutputForm
from penstock.service.server.http.faults import invalid
from penstock.service.server.openai.protocol import Sampling

GUIDED = {"guided_json": "schema", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
STRUCTURED = {"json": "schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
"""Keys of vLLM's `structured_outputs`."""


def output_form(body: Sampling) -> OutputForm:
    """The one form that a body asks for; plain text if it asks for none."""
    found = [form for read in READERS for form in read(body)]
    if len(found) > 1:
        names = " and ".join(form.param for form in found)
        raise invalid(f"{names} ask for different forms of one answer; send one", found[1].param)
    return found[0] if found else TEXT


def response_form(given: dict[str, Any] | None) -> OutputForm:
    kind = (given or {}).get("type", "text")
    if given is None or kind == "text":
        return TEXT
    if kind == "json_object":
        # llama.cpp's servers take a schema here.
        schema = given.get("schema")
        return OutputForm("json") if schema is None else OutputForm("schema", schema)
    if kind == "json_schema":
        described = given.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
        if not isinstance(described, dict) or not isinstance(schema, dict):
            raise invalid("response_format.json_schema.schema must be a JSON schema", "response_format")
        return OutputForm("schema", schema, is_lenient=described.get("strict") is False)
    raise invalid("response_format.type must be text, json_object or json_schema", "response_format")


def _response(body: Sampling) -> list[OutputForm]:
    form = response_form(body.response_format)
    return [] if form is TEXT else [form]


def _guided(body: Sampling) -> list[OutputForm]:
    asked = [(name, kind, getattr(body, name)) for name, kind in GUIDED.items()]
    return [OutputForm(kind, value, name) for name, kind, value in asked if value is not None]  # type: ignore[arg-type]


def _structured(body: Sampling) -> list[OutputForm]:
    given = body.structured_outputs or {}
    forms: list[OutputForm] = []
    for name, value in given.items():
        if name in STRUCTURED and value is not None:
            forms.append(OutputForm(STRUCTURED[name], value, f"structured_outputs.{name}"))  # type: ignore[arg-type]
        elif name == "json_object":
            forms += [OutputForm("json", None, "structured_outputs.json_object")] if value else []
        elif value is not None and name not in PASSED_OVER:
            raise invalid(f"structured_outputs.{name[:40]} is not supported; leave it out", "structured_outputs")
    return forms


PASSED_OVER = ("disable_fallback", "disable_any_whitespace", "whitespace_pattern", "backend", "_backend")
"""How another engine does it, not what the answer is."""


def _llama_cpp(body: Sampling) -> list[OutputForm]:
    forms = [] if body.grammar is None else [OutputForm("grammar", body.grammar, "grammar")]
    return forms if body.json_schema is None else [*forms, OutputForm("schema", body.json_schema, "json_schema")]


READERS: tuple[Callable[[Sampling], list[OutputForm]], ...] = (_response, _guided, _structured, _llama_cpp)
