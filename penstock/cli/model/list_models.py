"""`penstock list`: the models on this machine."""

from dataclasses import dataclass

from penstock.amounts import format_bytes
from penstock.console.show import print_json, print_table


@dataclass(frozen=True, slots=True)
class Config:
    """List the models that have been fetched.

    Any of them can be named to a command as it stands in the first column.
    """

    json: bool = False
    """Print JSON for machines"""


def run(config: Config) -> int:
    from penstock.runtime.formats.hub import default_cache, installed

    entries = installed(default_cache())
    if config.json:
        rows = [{"name": entry.name, "num_bytes": entry.num_bytes, "path": str(entry.path)} for entry in entries]
        print_json(rows)
    elif entries:
        table = [(entry.name, format_bytes(entry.num_bytes), str(entry.path)) for entry in entries]
        print_table(("model", "size", "path"), table)
    else:
        print("no model has been fetched; penstock pull fetches the default one")
    return 0
