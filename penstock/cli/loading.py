"""An `LLM` for a command, with a progress bar while it is fetched and loaded. Torch is imported here and not before."""

from typing import TYPE_CHECKING

from penstock.config import AdapterConfig, EngineConfig
from penstock.console.progress import ProgressBar

if TYPE_CHECKING:
    from penstock.offline.llm import LLM


MAX_RANK = 512
ADAPTER = "adapter"
"""Name under which a command lays its one adapter over the model."""


def adapter_at(path: str | None) -> tuple[AdapterConfig, str]:
    """What an engine is told of an adapter that a flag names, and the name to ask for it by."""
    if path is None:
        return AdapterConfig(), ""
    return AdapterConfig((f"{ADAPTER}={path}",), max_adapters=1, max_adapter_rank=MAX_RANK), ADAPTER


def open_llm(config: EngineConfig) -> "LLM":
    from penstock.offline.llm import LLM

    with ProgressBar() as progress:
        return LLM(config.model.model, config=config, progress=progress)
