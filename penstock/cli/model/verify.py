"""`penstock verify`: is a fetched model what was fetched?"""

from dataclasses import dataclass, field

from penstock.console.progress import ProgressBar
from penstock.errors import ConfigError
from penstock.runtime.formats.store import damaged_files


@dataclass(frozen=True, slots=True)
class Config:
    """Compare every file of a fetched model with the checksum that was taken when it was fetched.

    Exit status 1 if a file differs or is gone; nothing is fetched. Files that Penstock did not fetch have no checksum.
    """

    model: str = field(default="default", metadata={"positional": True})
    """Model to verify: a path, hf:ORG/NAME, pypi:PACKAGE, or `default`"""


def run(config: Config) -> int:
    from penstock.assembly.integrity import find_named

    entry = find_named(config.model)
    if entry is None:
        raise ConfigError(f"{config.model} was not fetched by penstock, so there is nothing to compare it with")
    with ProgressBar() as progress:
        damaged = damaged_files(entry, progress)
    for name in damaged:
        print(f"damaged: {name}")
    way_out = f"; fetch it again: penstock pull {config.model}" if damaged else ""
    print(f"{entry.name}: {len(damaged)} of {len(entry.files)} files are damaged{way_out}")
    return 1 if damaged else 0
