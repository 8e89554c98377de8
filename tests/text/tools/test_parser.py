"""Calls are found in every family's text, and the pieces it comes in never matter."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.text.stream.segments import Segments, ToolCallArguments, ToolCallStart, content_of, joined
from penstock.runtime.text.tools.formats import FORMATS
from penstock.runtime.text.tools.parser import ToolParser
from tests.text.tools.samples import SAMPLES, TOOLS, Calls, Sample


def is_text(tool: str, argument: str) -> bool:
    return TOOLS.get(tool, {}).get("properties", {}).get(argument, {}).get("type", "string") == "string"  # type: ignore


def parsed(format: str, pieces: list[str]) -> Segments:
    parser = ToolParser(FORMATS[format], is_text)
    segments = [segment for piece in pieces for segment in parser.feed(piece)]
    return joined([*segments, *parser.flush()])


def calls_in(segments: Segments) -> Calls:
    names = [segment.name for segment in segments if isinstance(segment, ToolCallStart)]
    texts = ["" for _ in names]
    for segment in segments:
        if isinstance(segment, ToolCallArguments):
            texts[segment.call] += segment.text
    return [(name, json.loads(text)) for name, text in zip(names, texts)]


def cuts(text: str, seed: int) -> list[str]:
    source = random.Random(seed)
    places = sorted(source.randrange(len(text) + 1) for _ in range(source.randrange(1, 12)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)])]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.format}-{sample.text[:12]}")
def test_calls_are_found_and_no_cut_changes_them(sample: Sample) -> None:
    whole = parsed(sample.format, [sample.text])
    assert content_of(whole) == sample.content
    assert calls_in(whole) == sample.calls
    assert [s.call for s in whole if isinstance(s, ToolCallStart)] == list(range(len(sample.calls)))
    assert parsed(sample.format, list(sample.text)) == whole
    for place in range(len(sample.text)):
        assert parsed(sample.format, [sample.text[:place], sample.text[place:]]) == whole, place
    for seed in range(30):
        assert parsed(sample.format, cuts(sample.text, seed)) == whole


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.format}-{sample.text[:12]}")
def test_no_cut_matters_for_an_answer_that_breaks_off_or_is_spoilt(sample: Sample) -> None:
    source = random.Random(7)
    for _ in range(25):
        text = sample.text[: source.randrange(len(sample.text))]
        place = source.randrange(len(text) + 1)
        text = text[:place] + source.choice(['"', "}", "\\", "<", "tool_call>", "\n", "(", "]"]) + text[place:]
        whole = parsed(sample.format, [text])
        assert parsed(sample.format, list(text)) == whole
        assert parsed(sample.format, cuts(text, 3)) == whole


@pytest.mark.parametrize("format", FORMATS)
@given(text=st.text("ab \n{}[]()<>/\"'\\:,=1|", max_size=60), seed=st.integers(0, 99))
def test_any_text_is_read_alike_in_any_pieces(format: str, text: str, seed: int) -> None:
    row = FORMATS[format]
    whole = row.opens + text + row.closes
    assert parsed(format, [whole]) == parsed(format, cuts(whole, seed)) == parsed(format, list(whole))


@pytest.mark.parametrize("format", FORMATS)
def test_text_without_calls_is_content_as_it_stands(format: str) -> None:
    text = "  Some words,\n and <more> of [them] (in) {braces}. \n"
    assert parsed(format, list(text)) == parsed(format, [text])
    assert content_of(parsed(format, [text])) == text
