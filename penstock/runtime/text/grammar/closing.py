"""Schemas that say what an answer holds, taken at their word: properties that nobody described are not written.

A JSON schema allows any further property unless `additionalProperties` says otherwise; people who ask for an answer of a schema
mean the properties they listed. Parts of an `allOf` stay open: closed ones would exclude each other's properties.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.errors import RequestError
from penstock.runtime.text.grammar.limits import parse_schema

_SAYS_ITSELF = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")
_COMBINES = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies")
_MAPS = ("properties", "$defs", "definitions", "patternProperties")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains")


def closed(schema: Any) -> Any:
    """The schema with `additionalProperties: false` wherever an object lists its properties and does not say."""
    return _closed(schema, frozenset(_shared_references(schema)))


def closed_text(source: str) -> str:
    """The same of JSON text. What is no schema, or none that may be used, is left to whoever refuses it."""
    try:
        return json.dumps(closed(parse_schema(source)))
    except RequestError:
        return source


def _closed(schema: Any, shared: frozenset[str], *, is_part: bool = False, where: str = "#") -> Any:
    if not isinstance(schema, Mapping):
        return schema
    below: dict[str, Any] = dict(schema)
    is_part = is_part or where in shared
    combines = any(name in schema for name in _COMBINES)
    for name in _MAPS:
        if isinstance(inner := schema.get(name), Mapping):
            below[name] = {key: _closed(one, shared, where=f"{where}/{name}/{key}") for key, one in inner.items()}
    alternatives_are_parts = is_part or "properties" in schema
    for name in _LISTS:
        if isinstance(inner := schema.get(name), list):
            are_parts = alternatives_are_parts and name != "prefixItems"
            below[name] = [_closed(one, shared, is_part=are_parts) for one in inner]
    for name in _SINGLE:
        below |= {name: _closed(schema[name], shared)} if name in schema else {}
    if isinstance(parts := schema.get("allOf"), list):
        is_alone = len(parts) == 1 and not alternatives_are_parts
        below["allOf"] = [_closed(one, shared, is_part=not is_alone) for one in parts]
    lists = isinstance(schema.get("properties"), Mapping)
    if lists and not is_part and not combines and not any(name in schema for name in _SAYS_ITSELF):
        below["additionalProperties"] = False
    return below


def _shared_references(value: Any) -> Iterator[str]:
    """What is referred to as a part of something larger."""
    if isinstance(value, list):
        for one in value:
            yield from _shared_references(one)
    if not isinstance(value, Mapping):
        return
    has_own = "properties" in value
    parts = [value] if has_own else []
    for name in ("allOf", "anyOf", "oneOf"):
        inner = value.get(name)
        if isinstance(inner, list) and (has_own or (name == "allOf" and len(inner) > 1)):
            parts += inner
    yield from (one["$ref"] for one in parts if isinstance(one, Mapping) and isinstance(one.get("$ref"), str))
    for one in value.values():
        yield from _shared_references(one)
