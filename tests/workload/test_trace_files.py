"""Laws of trace files: every form is read and written, damage is named by file and line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.tools.workload.trace import TraceRow, trace_of_rows
from penstock.tools.workload.trace_files import read
from tests.workload.trace_writers import WRITERS, write

MOONCAKE = """{"timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [46, 47]}

{"timestamp": 3000, "input_length": 500, "output_length": 5, "hash_ids": [46]}
"""
RECORDING = """\
{"timestamp":1500,"input_length":30,"output_length":6,"hash_ids":[9],"cached_length":0,"num_choices":1,"outcome":"stop"}
{"timestamp":500,"input_length":20,"output_length":7,"hash_ids":[8],"num_choices":3,"outcome":"length","ttft_ms":1.0}
{"timestamp":700,"input_length":20,"output_length":0,"hash_ids":[8],"num_choices":1,"outcome":"refused","ttft_ms":null}
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.6805900,374,44
2023-11-17 00:00:01.1805901,396,109
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,a,1.0,ChatGPT,472,18,490,Conversation log
45.5,,,GPT-4,1087.0,230,1317,API log
118,b,,GPT-4,417,0,417,API log
"""


def rows_of(path: Path, text: str):
    path.write_text(text)
    return [(round(row.time_s, 6), row.prompt_length, row.answer_length, list(row.blocks)) for row in read(path).rows()]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (MOONCAKE, [(0.0, 700, 52, [46, 47]), (3.0, 500, 5, [46])]),
        (RECORDING, [(0.0, 20, 3, [8]), (0.0, 20, 2, [8]), (0.0, 20, 2, [8]), (1.0, 30, 6, [9])]),
        (AZURE, [(0.0, 374, 44, []), (1.5, 396, 109, [])]),
        ("\ufeff" + BURSTGPT.replace("\n", "\r\n"), [(0.0, 472, 18, []), (40.5, 1087, 230, [])]),
    ],
    ids=["mooncake", "recording", "azure", "burstgpt"],
)
def test_every_form_is_read(tmp_path, text, rows):
    assert rows_of(tmp_path / "trace", text) == rows


def test_rows_without_an_answer_are_left_out_and_counted(tmp_path):
    (tmp_path / "trace").write_text(BURSTGPT)
    assert read(tmp_path / "trace").num_unanswered == 1


ROW = st.builds(
    TraceRow,
    time_s=st.integers(0, 10**9).map(lambda microseconds: microseconds / 1e6),
    prompt_length=st.integers(1025, 10**6),
    answer_length=st.integers(1, 10**6),
    blocks=st.lists(st.integers(0, 2**63 - 1), max_size=3),
)


@pytest.mark.parametrize("form", WRITERS)
@given(rows=st.lists(ROW, min_size=1, max_size=8))
def test_what_is_written_is_read_back(tmp_path_factory, form, rows):
    path = tmp_path_factory.mktemp("traces") / "trace"
    trace = trace_of_rows(rows)
    write(path, trace, form)
    again = read(path)
    assert list(again.times_s) == pytest.approx(list(trace.times_s), abs=2e-6)
    assert again.prompt_lengths == trace.prompt_lengths
    assert again.answer_lengths == trace.answer_lengths
    if form == "mooncake":
        assert (again.blocks, again.block_starts) == (trace.blocks, trace.block_starts)


GOOD = '{"timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [46, 47]}'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "line 1: neither"),
        (f"{GOOD}\n{GOOD[:-9]}", "line 2: "),
        (f"{GOOD}\n\n[1]", "line 3: not a JSON object"),
        (f"{GOOD}\n{{}}", "line 2: input_length is missing"),
        (GOOD.replace("700", "-1"), "line 1: input_length is '-1'"),
        (GOOD.replace("700", "true"), "line 1: input_length"),
        (GOOD.replace("700", "1e9"), "line 1: input_length"),
        (GOOD.replace("700", "99999999999"), "line 1: input_length"),
        (GOOD.replace("700", "500"), "line 1: 2 hash_ids are too many"),
        (GOOD.replace("52", '"52"'), "line 1: output_length"),
        (GOOD.replace(": 0,", ": NaN,"), "line 1: timestamp is 'nan', no time"),
        (GOOD.replace(": 0,", ": 1e999,"), "line 1: timestamp is 'inf', no time"),
        (GOOD.replace("46", "-46"), "line 1: hash_ids holds"),
        (GOOD.replace("46", str(2**63)), "line 1: hash_ids holds"),
        (GOOD.replace("[46, 47]", '"x"'), "line 1: hash_ids is no list"),
        (GOOD.replace("[46, 47]", "[" * 100_000), "line 1: "),
        (GOOD.replace("52", "0"), "no request that was answered"),
        (GOOD[:-1] + ', "num_choices": 999999999}', "line 1: num_choices"),
        (AZURE.replace("374", "x"), "line 2: ContextTokens is 'x'"),
        (AZURE.replace("374", "nan"), "line 2: ContextTokens is 'nan'"),
        (AZURE.replace("374", "37.4"), "line 2: ContextTokens is '37.4'"),
        (AZURE.replace("2023-11-17", "2023-02-30"), "line 3: TIMESTAMP"),
        (AZURE.replace("23:59:59", "24:59:59"), "line 2: TIMESTAMP"),
        (AZURE.replace("2023-11-17", "yesterday"), "line 3: TIMESTAMP"),
        (AZURE.replace("374,44", "374"), "line 2: 2 cells under 3 names"),
        (BURSTGPT.replace("45.5", "inf"), "line 3: Timestamp is 'inf'"),
        (AZURE.replace("374", '"374'), "line 2: "),
    ],
)
def test_damage_is_named_by_its_line(tmp_path, text, fault):
    (tmp_path / "trace").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "trace")
    assert fault in str(caught.value)


def test_bytes_that_are_no_text_and_endless_lines_are_refused(tmp_path):
    (tmp_path / "bytes").write_bytes(GOOD.encode() + b"\n\xff\xfe")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        read(tmp_path / "bytes")
    (tmp_path / "long").write_bytes(b"{" + b" " * 5_000_000)
    with pytest.raises(ConfigError, match="line 1: longer"):
        read(tmp_path / "long")


def test_files_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read(tmp_path / "none")
