"""An `LLM` for a command, with a progress bar while it is fetched and loaded. Torch is imported here and not before."""

from typing import TYPE_CHECKING

from penstock.config import AdapterConfig, EngineConfig, named_adapter
from penstock.console.progress import ProgressBar

if TYPE_CHECKING:
    from penstock.offline.llm import LLM


MAX_RANK = 512


def adapter_at(text: str | None) -> tuple[AdapterConfig, str]:
    """What an engine is told of an adapter that a flag names, as serve's does, and the name to ask for it by."""
    if text is None:
        return AdapterConfig(), ""
    return AdapterConfig((text,), max_adapters=1, max_adapter_rank=MAX_RANK), named_adapter(text)[0]


def open_llm(config: EngineConfig) -> "LLM":
    from penstock.offline.llm import LLM

    with ProgressBar() as progress:
        return LLM(config.model.model, config=config, progress=progress)
