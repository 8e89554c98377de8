"""What commands print: tables for people, JSON for machines.

Colours appear on a terminal only, and not where NO_COLOR is set: rich, imported when first needed, sees to both.
"""

import json
import sys
from collections.abc import Sequence

UNBOUNDED_WIDTH = 10_000


def printable(text: str) -> str:
    """Text with nothing that steers a terminal: names out of model files are not to be trusted with one."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)


def print_json(value: object) -> None:
    """One JSON value. A number that JSON cannot write is a ValueError, for a reader would choke on it later."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Rows under headings, numbers to the right; None is an empty cell. A pipe gets every cell whole. No headings, no line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heading = Text(title) if title else None
    table = Table(title=heading, title_justify="left", box=None, pad_edge=False, show_header=any(columns))
    for index, column in enumerate(columns):
        is_numeric = any(isinstance(row[index], int | float) for row in rows)
        table.add_column(Text(column), justify="right" if is_numeric else "left")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    Console(width=None if is_terminal else UNBOUNDED_WIDTH, highlight=False).print(table)


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))
