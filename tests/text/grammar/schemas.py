"""Schemas made up at random, out of every construct that we say we hold to; a seed gives the same one again."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname")
PATTERNS = (r"^[A-Z]{2}-\d{3}$", r"^(foo|bar)+$", r"^[a-z]{1,8}(\.[a-z]{1,4})?$", r"^\d{4}$")
KEYS = ("name", "id", "a rather long key", "größe", 'quo"ted', "back\\slash", "x", "items", "$weird", "日本")


def make_schema(seed: int) -> Schema:
    source = random.Random(seed)
    schema = _schema(source, 3)
    if source.random() < 0.3:
        kind = source.choice(("node", "leaf"))
        schema = {"$defs": {kind: schema}, "type": "array", "items": {"$ref": f"#/$defs/{kind}"}, "maxItems": 2}
    return schema


def _schema(source: random.Random, depth: int) -> Schema:
    makers: list[Callable[[random.Random, int], Schema]] = [_string, _integer, _number, _constant, _simple]
    if depth:
        makers += [_object, _object, _array, _tuple, _union, _dictionary, _intersection]
    return source.choice(makers)(source, depth)


def _simple(source: random.Random, depth: int) -> Schema:
    return {"type": source.choice(("boolean", "null", ["string", "null"], ["integer", "boolean"]))}


def _string(source: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "string"}
    way = source.randrange(4)
    if way == 0:
        schema["pattern"] = source.choice(PATTERNS)
    elif way == 1:
        schema["format"] = source.choice(FORMATS)
    elif way == 2:
        least = source.randrange(5)
        schema |= {"minLength": least, "maxLength": least + source.randrange(20)}
    return schema


def _integer(source: random.Random, depth: int) -> Schema:
    low = source.randrange(-1000, 1000)
    schema: Schema = {"type": "integer"}
    if source.random() < 0.6:
        schema |= {"minimum": low, "maximum": low + source.randrange(500)}
    elif source.random() < 0.5:
        schema["exclusiveMinimum"] = low
    return schema


def _number(source: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "number"}
    if source.random() < 0.5:
        schema |= {"minimum": source.randrange(-9, 5), "maximum": source.randrange(5, 99)}
    return schema


def _constant(source: random.Random, depth: int) -> Schema:
    values = [None, True, -3, 2.5, "text", 'a "quote"', "line\nbreak", {"a": [1, "b"]}, [], "ünï"]
    if source.random() < 0.4:
        return {"const": source.choice(values)}
    return {"enum": source.sample(values, source.randrange(1, 6))}


def _object(source: random.Random, depth: int) -> Schema:
    keys = source.sample(KEYS, source.randrange(1, 5))
    schema: Schema = {
        "type": "object",
        "properties": {key: _schema(source, depth - 1) for key in keys},
        "required": source.sample(keys, source.randrange(len(keys) + 1)),
    }
    if source.random() < 0.8:
        schema["additionalProperties"] = False
    return schema


def _dictionary(source: random.Random, depth: int) -> Schema:
    return {"type": "object", "additionalProperties": _schema(source, depth - 1), "maxProperties": 1}


def _array(source: random.Random, depth: int) -> Schema:
    least = source.randrange(3)
    return {
        "type": "array",
        "items": _schema(source, depth - 1),
        "minItems": least,
        "maxItems": least + source.randrange(3),
    }


def _tuple(source: random.Random, depth: int) -> Schema:
    parts = [_schema(source, depth - 1) for _ in range(source.randrange(1, 4))]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}


def _union(source: random.Random, depth: int) -> Schema:
    return {"anyOf": [_schema(source, depth - 1) for _ in range(source.randrange(1, 4))]}


def _intersection(source: random.Random, depth: int) -> Schema:
    return {
        "allOf": [
            {"type": "object", "properties": {"left": _schema(source, depth - 1)}, "required": ["left"]},
            {"type": "object", "properties": {"right": _schema(source, depth - 1)}},
        ]
    }
