"""A schema that lists properties is held to them: nothing is written that nobody described, and nothing described is lost."""

import json
from typing import Any

import jsonschema
import pytest

from penstock.runtime.text.grammar.closing import closed, closed_text
from penstock.service.server.calls.forms import source_of
from penstock.service.server.openai.request import response_form
from tests.text.grammar.schemas import make_schema
from tests.text.grammar.walk import compiler, tokenizer, write

TEXT = {"type": "string"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        (of(a=TEXT), {"a": "x"}),
        (of(a=of(b=TEXT)), {"a": {"b": "x"}}),
        ({"type": "array", "items": of(a=TEXT)}, [{"a": "x"}]),
        ({"anyOf": [of(a=TEXT), of(b=TEXT)]}, {"b": "x"}),
        ({"allOf": [of(a=TEXT)]}, {"a": "x"}),
        ({"$defs": {"one": of(a=TEXT)}, **of(b={"$ref": "#/$defs/one"})}, {"b": {"a": "x"}}),
    ],
    ids=str,
)
def test_undescribed_properties_are_refused_at_any_depth(schema: dict[str, Any], instance: Any) -> None:
    held = jsonschema.Draft202012Validator(closed(schema))
    assert held.is_valid(instance)
    spoiled = json.loads(json.dumps(instance).replace('"x"}', '"x", "nobody": 1}'))
    assert jsonschema.Draft202012Validator(schema).is_valid(spoiled)
    assert not held.is_valid(spoiled)


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        ({"type": "object"}, {"any": 1}),
        ({**of(a=TEXT), "additionalProperties": True}, {"b": 1}),
        ({**of(a=TEXT), "patternProperties": {"^b": {}}}, {"b": 1}),
        ({"allOf": [of(a=TEXT), of(b=TEXT)]}, {"a": "x", "b": "y"}),
        ({**of(a=TEXT), "anyOf": [of(b=TEXT), of(c=TEXT)]}, {"a": "x", "b": "y"}),
        ({"$defs": {"base": of(a=TEXT)}, "allOf": [{"$ref": "#/$defs/base"}, of(b=TEXT)]}, {"a": "x", "b": "y"}),
    ],
    ids=str,
)
def test_what_a_schema_allows_in_so_many_words_stays_allowed(schema: dict[str, Any], instance: Any) -> None:
    assert jsonschema.Draft202012Validator(closed(schema)).is_valid(instance)


def test_what_is_written_under_a_closed_schema_is_an_instance_of_both() -> None:
    for seed in range(30):
        schema = make_schema(seed)
        jsonschema.Draft202012Validator.check_schema(closed(schema))
        assert closed(closed(schema)) == closed(schema)


@pytest.mark.parametrize("strict", [{}, {"strict": True}, {"strict": False}], ids=str)
def test_a_response_format_writes_what_it_describes_and_no_more(strict: dict[str, bool]) -> None:
    schema = {**of(age={"type": "integer", "maximum": 99, "minimum": 0}), "required": ["age"]}
    form = response_form({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **strict}})
    grammar = source_of(form)
    assert grammar
    for seed in range(6):
        drawn = write(compiler().compile(grammar.kind, grammar.source), seed)
        assert drawn
        assert set(json.loads(tokenizer().decode(drawn))) == {"age"}


def test_what_is_no_schema_is_left_to_whoever_refuses_it() -> None:
    for source in ("{", "[" * 500, "7"):
        assert closed_text(source) == source
