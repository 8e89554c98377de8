"""An `LLM` for a command, with a progress bar while it is fetched and loaded. Torch is imported here and not before."""

from typing import TYPE_CHECKING

from penstock.config import EngineConfig
from penstock.console.progress import ProgressBar

if TYPE_CHECKING:
    from penstock.offline.llm import LLM


def open_llm(config: EngineConfig) -> "LLM":
    from penstock.offline.llm import LLM

    with ProgressBar() as progress:
        return LLM(config.model.model, config=config, progress=progress)
