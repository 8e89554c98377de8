"""The law of event streams: however the bytes are cut, the same events come out."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import EngineError
from penstock.tools.bench.client import sse
from penstock.tools.bench.client.sse import EventParser

STREAM = 'data: {"a":1}\n\n: ping\nevent: x\ndata:two\ndata:  lines\n\n\nid: 7\ndata: \n\ndata: ü€\n\ndata: [DONE]\n\ndata: cut'
EVENTS = [b'{"a":1}', b"two\n lines", b"", "ü€".encode(), b"[DONE]"]


def events_of(parts: list[bytes]) -> list[bytes]:
    parser = EventParser()
    return [event for part in parts for event in parser.feed(part)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_stream_cut_at_every_byte_gives_the_same_events(end):
    data = STREAM.replace("\n", end).encode()
    assert events_of([data]) == EVENTS
    for place in range(len(data) + 1):
        assert events_of([data[:place], data[place:]]) == EVENTS
    assert events_of([data[place : place + 1] for place in range(len(data))]) == EVENTS


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_an_event_comes_with_its_last_byte_and_not_a_byte_later(end):
    assert events_of([f"data: one{end}{end}".encode()]) == [b"one"]


@given(places=st.lists(st.integers(0, 200), max_size=12), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_any_cuts_give_the_same_events(places, end):
    data = STREAM.replace("\n", end).encode()
    cuts = sorted({0, len(data), *(place % len(data) for place in places)})
    assert events_of([data[a:b] for a, b in pairwise(cuts)]) == EVENTS


def test_an_endless_event_is_refused(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    with pytest.raises(EngineError, match="more than 100 bytes"):
        events_of([b"data: xxxx"] * 50)
