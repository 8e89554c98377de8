"""`penstock eval compare`: two reports of eval side by side: better, worse, or within chance."""

from dataclasses import dataclass, field
from pathlib import Path

from penstock.console.files import read_object
from penstock.console.show import print_json, print_table
from penstock.tools.evaluate.comparison import compare

REPORT = ("report of penstock eval", "write one with --json")


@dataclass(frozen=True, slots=True)
class Config:
    """Compare two reports that penstock eval wrote with --json: is B better, worse, or the difference within chance?

    Both must be of the same text or the same questions. Windows, or questions, are compared pair by pair.
    """

    first: Path = field(metadata={"positional": True})
    """Report A, of the model there was before"""
    second: Path = field(metadata={"positional": True})
    """Report B"""
    json: bool = False
    """Print JSON for machines"""


def run(config: Config) -> int:
    found = compare(*(read_object(path, *REPORT) for path in (config.first, config.second)))
    if config.json:
        print_json({"comparisons": found})
        return 0
    columns = ("measure", "A", "B", "B against A", "19 of 20 lie between", "so B is")
    rows = [
        (
            each["measure"],
            f"{each['a']:,}",
            f"{each['b']:,}",
            f"{each['change']:+.4%}" if each["measure"] == "perplexity" else f"{each['change']:+.4f}",
            f"{each['interval'][0]:+.4f} and {each['interval'][1]:+.4f}",
            each["verdict"],
        )
        for each in found
    ]
    print_table(columns, rows)
    return 0
