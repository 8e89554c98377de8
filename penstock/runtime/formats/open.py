"""Opens whatever `hub.resolve` returned, by what it is. The only place that knows every format."""

import os
from pathlib import Path

from penstock.runtime.formats.checkpoint import Checkpoint
from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.formats.safetensors import open_safetensors


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The tensors of a .gguf file, a .safetensors file, or a directory of the latter."""
    path = Path(path)
    if not os.path.isdir(path) and path.suffix.lower() == ".gguf":
        return GgufFile(path)
    return open_safetensors(path)
