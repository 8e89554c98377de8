"""`penstock verify`: is a fetched model what was fetched?"""

from dataclasses import dataclass, field

from penstock.console.progress import ProgressBar


@dataclass(frozen=True, slots=True)
class Config:
    """Compare every file of a fetched model with the checksum that was taken when it was fetched.

    Exit status 1 if a file differs. Files that were not fetched by Penstock have no checksum to compare with.
    """

    model: str = field(default="default", metadata={"positional": True})
    """Model to verify: a path, hf:ORG/NAME, pypi:PACKAGE, or `default`"""


def run(config: Config) -> int:
    from penstock.assembly.integrity import damage_of, find_fetched
    from penstock.errors import ConfigError
    from penstock.runtime.files import open_files

    with ProgressBar() as progress:
        path = open_files(config.model, progress=progress).path
        entry = find_fetched(path)
        if entry is None:
            raise ConfigError(f"{path} was not fetched by penstock, so there is nothing to compare it with")
        damaged = damage_of(path, progress)
    for name in damaged:
        print(f"damaged: {name}")
    way_out = "; fetch it again" if damaged else ""
    print(f"{entry.name}: {len(damaged)} of {len(entry.files)} files are damaged{way_out}")
    return 1 if damaged else 0
