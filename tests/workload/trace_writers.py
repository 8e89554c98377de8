"""Traces written as the files that others publish, for tests to read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from penstock.tools.workload.trace import Trace


def write(path: Path, trace: Trace, form: str = "mooncake") -> None:
    """Azure's and BurstGPT's files cannot say which prompts began alike."""
    with path.open("w", encoding="utf-8", newline="") as file:
        WRITERS[form](file, trace)


def _write_mooncake(file: Any, trace: Trace) -> None:
    for row in trace.rows():
        line = {
            "timestamp": _plain(round(row.time_s * 1000, 6)),
            "input_length": row.prompt_length,
            "output_length": row.answer_length,
            "hash_ids": list(row.blocks),
        }
        if trace.names_answers:
            line["block_size"] = trace.block_size
        file.write(json.dumps(line) + "\n")


def _write_azure(file: Any, trace: Trace) -> None:
    file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    epoch = numpy.datetime64("2000-01-01", "ns")
    for row in trace.rows():
        time = epoch + numpy.timedelta64(round(row.time_s * 1e9), "ns")
        file.write(f"{str(time).replace('T', ' ')},{row.prompt_length},{row.answer_length}\n")


def _write_burstgpt(file: Any, trace: Trace) -> None:
    file.write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
    for row in trace.rows():
        total = row.prompt_length + row.answer_length
        time = _plain(round(row.time_s, 9))
        file.write(f"{time},unknown,{row.prompt_length},{row.answer_length},{total},Conversation log\n")


WRITERS: dict[str, Callable[[Any, Trace], None]] = {
    "mooncake": _write_mooncake,
    "azure": _write_azure,
    "burstgpt": _write_burstgpt,
}


def _plain(number: float) -> int | float:
    return int(number) if number.is_integer() else number
