"""`penstock bench compare`: two reports side by side, with intervals, and a refusal where they measured different things."""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.amounts import counted
from penstock.console.files import write_file
from penstock.console.show import print_json, print_table, printable
from penstock.fields import setting

if TYPE_CHECKING:
    from penstock.tools.bench.report.compare import ReportComparison

FAULT_STATUS = 1


@dataclass(frozen=True, slots=True)
class Config:
    """Compare two reports of penstock bench.

    A difference is called better or worse only where repeated runs exclude chance. Reports of different loads, and runs that
    were not the server's, are refused.
    """

    first: Path = field(metadata={"positional": True})
    """Report to compare from"""
    second: Path = field(metadata={"positional": True})
    """Report to compare to"""
    force: bool = setting(False)
    """Compare even what is not comparable"""
    json: bool = False
    """Print JSON for machines"""
    html: Path | None = None
    """Write a page with both in one plot"""


def run(config: Config) -> int:
    from penstock.cli.bench.report import print_flags
    from penstock.tools.bench.report.compare import compare, read_report
    from penstock.tools.bench.report.page import flag_list, page_of, table

    first, second = read_report(config.first), read_report(config.second)
    found = compare(first, second)
    faults = [asdict(fault) for fault in found.faults]
    is_shown = found.is_sound or config.force
    columns = ("", "first", "second", "change", "%", "")
    if config.html is not None:
        shown = [tuple("" if cell is None else cell for cell in row) for row in _rows(found, "±")] if is_shown else []
        extra = flag_list(faults) + (table(columns, shown) if shown else "<p>Not compared.</p>")
        write_file(config.html, page_of([first, second], ["first", "second"], extra))
    if config.json:
        print_json({"is_sound": found.is_sound, "faults": faults, "rows": [asdict(row) for row in found.rows]})
    else:
        for name, report, path in (("first", first, config.first), ("second", second, config.second)):
            runs = counted(len(report["runs"]), "run")
            print(f"{name:8}{printable(str(path))}: {printable(report['target']['model'])}, {runs}")
        print()
        print_flags(faults)
        if is_shown:
            print_table(columns, _rows(found, "+-"))
    if not is_shown:
        print("penstock: not comparable; force=true shows the figures all the same", file=sys.stderr)
        return FAULT_STATUS
    return 0


def _rows(found: "ReportComparison", sign: str) -> list[tuple[object, ...]]:
    """As a table shows them; `sign` stands before what a change may be off by."""
    return [
        (
            row.name,
            row.before,
            row.after,
            _change(row.change.mean, row.change.half_width, sign),
            row.percent,
            {None: "", True: "better", False: "worse"}[row.is_better],
        )
        for row in found.rows
    ]


def _change(mean: float, half_width: float | None, sign: str) -> str:
    from penstock.tools.bench.report.report import figure

    change = f"{'+' if mean >= 0.0 else ''}{figure(mean)}"
    return change if half_width is None else f"{change} {sign} {figure(half_width)}"
