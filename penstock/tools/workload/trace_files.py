"""Traces as files: Mooncake's jsonl (our own recordings too), Azure's csv and BurstGPT's csv, told apart by their first line.

A file is not trusted: whatever cannot be a trace is a ConfigError that names the file, the line and what was expected there.
"""

import csv
import json
import math
import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy

from penstock.errors import ConfigError
from penstock.tools.workload.lengths import MAX_LENGTH
from penstock.tools.workload.trace import BLOCK_TOKENS, MAX_BLOCK_ID, Trace, TraceRow, trace_of_rows

MAX_LINE_BYTES = 4 * 2**20
MAX_ROWS = 20_000_000
MAX_CHOICES = 128
MAX_TIME_S = 1e10
DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d(?:\.\d{1,9})?)", re.ASCII)
FIRST_DAY = "2000-01-01"


def read(path: Path) -> Trace:
    """The trace in a file. Rows for which nothing was generated are left out and counted."""
    try:
        with path.open("rb") as file:
            form = TraceForm()
            rows = list(_rows(path, file, form))
    except OSError as error:
        raise ConfigError(f"cannot read the trace {path}: {error.strerror}") from error
    answered = [row for row in rows if row.answer_length]
    if not answered:
        raise ConfigError(f"the trace {path} holds no request that was answered")
    num_unanswered = len(rows) - len(answered)
    size = form.block_size
    return trace_of_rows(answered, num_unanswered, size or BLOCK_TOKENS, names_answers=size is not None)


@dataclass(slots=True)
class TraceForm:
    """What ids of a file stand for, as its first line with ids says."""

    is_known: bool = False
    block_size: int | None = None
    """Of a server's recording; None for prompts alone, 512 tokens an id."""

    def take(self, block_size: int | None) -> None:
        if self.is_known and self.block_size != block_size:
            before, now = (one or BLOCK_TOKENS for one in (self.block_size, block_size))
            raise ValueError(f"hash_ids of {now} tokens after such of {before}; make a file of each kind")
        self.is_known, self.block_size = True, block_size


def _rows(path: Path, file: BinaryIO, form: TraceForm) -> Iterator[TraceRow]:
    lines = _lines(path, file)
    number, head = next(lines, (0, ""))
    if not head:
        raise ConfigError(f"the trace {path} is empty")
    if head.startswith("{"):
        parse: Callable[[str], list[TraceRow]] = partial(_row_of_object, form)
        pending = [(number, head)]
    else:
        parse = _csv_parser(path, head)
        pending = []
    count = 0
    for source in (pending, lines):
        for number, line in source:
            try:
                rows = parse(line)
            except (ValueError, KeyError, RecursionError, csv.Error) as error:
                fault = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
                raise ConfigError(f"{path}, line {number}: {fault}") from None
            count += len(rows)
            if count > MAX_ROWS:
                raise ConfigError(f"{path}, line {number}: a trace of more than {MAX_ROWS:,} requests; cut the file")
            yield from rows


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers from 1."""
    number = 0
    while data := file.readline(MAX_LINE_BYTES):
        number += 1
        if len(data) == MAX_LINE_BYTES:
            raise ConfigError(f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} bytes; this is no trace")
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise ConfigError(f"{path}, line {number}: not UTF-8 text") from None
        if line:
            yield number, line


# Mooncake's objects, and our recordings, which add to them


def _row_of_object(form: TraceForm, line: str) -> list[TraceRow]:
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    prompt = _count("input_length", data["input_length"], 1)
    blocks = data.get("hash_ids") or ()
    if not isinstance(blocks, list | tuple):
        raise ValueError("hash_ids is no list")
    if not all(type(block) is int and 0 <= block <= MAX_BLOCK_ID for block in blocks):
        raise ValueError(f"hash_ids holds something that is no whole number from 0 to {MAX_BLOCK_ID}")
    answer = _count("output_length", data["output_length"], 0)
    size = _count("block_size", data["block_size"], 1) if "block_size" in data else None
    named = math.ceil(prompt / BLOCK_TOKENS) if size is None else (prompt + answer) // size
    if len(blocks) > named:
        raise ValueError(f"{len(blocks)} hash_ids are too many for {prompt} tokens, {size or BLOCK_TOKENS} an id")
    if blocks:
        form.take(size)
    row = TraceRow(_time("timestamp", data["timestamp"]) / 1000, prompt, answer, array("q", blocks))
    return _by_choice(row, _count("num_choices", data.get("num_choices", 1), 1))


def _by_choice(row: TraceRow, num_choices: int) -> list[TraceRow]:
    """Choices of one request are replayed as requests of the same prompt, each with its share of the tokens."""
    if num_choices > MAX_CHOICES:
        raise ValueError(f"num_choices is {num_choices}; at most {MAX_CHOICES} are read")
    share, rest = divmod(row.answer_length, num_choices)
    return [replace(row, answer_length=share + (number < rest)) for number in range(num_choices)]


# Tables


def _csv_parser(path: Path, head: str) -> Callable[[str], list[TraceRow]]:
    names = [name.strip() for name in next(csv.reader([head]))]
    for columns, time_of in (
        (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _date),
        (("Timestamp", "Request tokens", "Response tokens"), lambda name, text: _time(name, _number(text))),
    ):
        if set(columns) <= set(names):
            return partial(_row_of_table, names, columns, time_of)
    raise ConfigError(
        f"{path}, line 1: neither a JSON object nor the header of a known trace (TIMESTAMP, ContextTokens, GeneratedTokens "
        "or Timestamp, Request tokens, Response tokens)"
    )


def _row_of_table(
    names: list[str], columns: tuple[str, str, str], time_of: Callable[[str, str], float], line: str
) -> list[TraceRow]:
    cells = next(csv.reader([line]))
    if len(cells) != len(names):
        raise ValueError(f"{len(cells)} cells under {len(names)} names")
    row: Mapping[str, str] = dict(zip(names, cells, strict=True))
    time, prompt, answer = columns
    counts = _count(prompt, _number(row[prompt]), 1), _count(answer, _number(row[answer]), 0)
    return [TraceRow(time_of(time, row[time]), *counts)]


# Cells


def _date(name: str, text: str) -> float:
    """Seconds since a fixed day; differences keep their microseconds in a float."""
    found = DATE.fullmatch(text.strip())
    if found:
        day, hour, minute, second = found[1], int(found[2]), int(found[3]), float(found[4])
        if hour < 24 and minute < 60 and second < 61.0:
            try:
                return _day_s(day) + hour * 3600 + minute * 60 + second
            except ValueError:
                pass  # no such day
    raise ValueError(f"{name} is {text[:40]!r}, no time like 2023-11-16 18:15:46.6805900")


@lru_cache(maxsize=1024)
def _day_s(day: str) -> int:
    return int((numpy.datetime64(day, "D") - numpy.datetime64(FIRST_DAY, "D")).astype(int)) * 86_400


def _time(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= MAX_TIME_S * 1000:
        raise ValueError(f"{name} is {str(value)[:40]!r}, no time")
    return float(value)


def _number(text: str) -> float | str:
    """A number as tables write it; some write 12.0 for 12. Text that is none stays as it is."""
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _count(name: str, value: Any, low: int) -> int:
    if type(value) is not int or not low <= value <= MAX_LENGTH:
        raise ValueError(f"{name} is {str(value)[:40]!r}, no whole number from {low} to {MAX_LENGTH:,}")
    return value
