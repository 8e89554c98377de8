"""Laws of events: whatever the text, an event is one line to every client and reads back as it was."""

import json

from hypothesis import given
from hypothesis import strategies as st

from penstock.service.server.http import sse
from penstock.service.server.http.faults import invalid
from penstock.service.server.openai.dialect import DIALECT

TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\r\n\x0b\x0c\x1c\x85\u2028\u2029"))


@given(TEXTS)
def test_an_event_is_one_line(text: str) -> None:
    for data, value in ((sse.event({"text": text}), {"text": text}), (DIALECT.error_event(invalid(text), ""), None)):
        line, blank, rest = data.decode().split("\n")
        assert (blank, rest) == ("", "")
        assert len(line.splitlines()) == 1
        reported = json.loads(line.removeprefix("data: "))
        assert reported == value or reported["error"]["message"] == text
