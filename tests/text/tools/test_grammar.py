"""Whatever is drawn under a grammar of tools is free text and calls that the parser finds, valid by the tools' schemas."""

import jsonschema
import pytest

from penstock.runtime.text.grammar.compose import Markers
from penstock.runtime.text.stream.segments import ToolCallEnd, content_of
from penstock.runtime.text.tools.formats import FORMATS
from penstock.runtime.text.tools.grammar import Tool, tools_grammar
from tests.text.grammar.walk import compiler, tokenizer, write
from tests.text.tools.samples import TOOLS
from tests.text.tools.test_parser import calls_in, parsed

SCHEMAS = [Tool(name, "", schema, is_strict=True) for name, schema in TOOLS.items()]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("is_parallel", [True, False])
def test_required_calls_are_calls_and_valid(format: str, is_parallel: bool) -> None:
    kind, source = tools_grammar(
        FORMATS[format], SCHEMAS, Markers(tokenizer()), is_required=True, is_parallel=is_parallel
    )
    num_ended = 0
    for seed in range(4):
        drawn = write(compiler().compile(kind, source), seed, 120)
        if drawn is None:
            continue
        num_ended += 1
        text = tokenizer().decode(drawn, skip_special=False)
        segments = parsed(format, [text])
        calls = calls_in(segments)
        assert calls, text
        assert content_of(segments) == ""
        assert is_parallel or len(calls) == 1
        assert sum(isinstance(segment, ToolCallEnd) for segment in segments) == len(calls)
        for name, arguments in calls:
            jsonschema.validate(arguments, TOOLS[name])
    assert num_ended


@pytest.mark.parametrize("format", FORMATS)
def test_words_are_free_until_a_call_is_opened_and_then_held(format: str) -> None:
    row = FORMATS[format]
    kind, source = tools_grammar(row, SCHEMAS, Markers(tokenizer()))
    words = tokenizer().encode(row.speech + "Some words, [1] {2} <3>: nothing is called.", special=False)
    free = compiler().compile(kind, source)
    free.advance(words)
    assert free.native.is_accepting()
    assert not free.fault
    held = compiler().compile(kind, source)
    opening = (row.opens + row.pad) if row.opens else row.list_opens or '{"'
    before = "Well: " if row.opens and not row.speech else ""
    held.advance(tokenizer().encode(before + opening, special=False))
    assert not held.native.is_accepting(), "a call that is opened must be written"
    drawn = write(held, 5, 200)
    if drawn is not None:
        text = opening + tokenizer().decode(drawn, skip_special=False, at_start=False)
        for name, arguments in calls_in(parsed(format, [text])):
            jsonschema.validate(arguments, TOOLS[name])


def test_only_allowed_tools_can_be_called() -> None:
    kind, source = tools_grammar(FORMATS["hermes"], SCHEMAS[1:], Markers(tokenizer()), is_required=True)
    for seed in range(3):
        drawn = write(compiler().compile(kind, source), seed, 200)
        if drawn is not None:
            assert {name for name, _ in calls_in(parsed("hermes", [tokenizer().decode(drawn)]))} == {"stop-all"}
