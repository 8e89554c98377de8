"""One of several models as the pool has it: what is served of it, where it stands, and how its files are read and verified."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.service.server.pool.resident import Resident
from penstock.service.server.served import ServedModel
from penstock.service.server.text import ModelCard, Text


class CheckedFiles(NamedTuple):
    """What a look at a model's files tells."""

    card: ModelCard
    num_bytes: int
    """What it is expected to take."""


class Verifier(Protocol):
    """Whether a model is what it was."""

    def damage(self) -> str:
        """What is wrong with its files; empty where nothing is, or nobody vouched for them. Blocks while they are read."""

    async def change(self, model: ServedModel) -> str | None:
        """What is wrong with its answers; None where nothing can be said. Asked of a loaded model that no request has yet."""


class PooledModel(NamedTuple):
    """A model that can be loaded."""

    served: ServedModel
    resident: Resident
    open_text: Callable[[], Text]
    """Blocks."""
    check: Callable[[], CheckedFiles]
    """Blocks. Raises PenstockError for files that no engine could load."""
    verifier: Verifier | None = None
