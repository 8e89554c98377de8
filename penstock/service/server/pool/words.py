"""Words of models that are not loaded: those of the last few are kept, so that a model that comes back need not read them.

Reading a vocabulary takes longer than mapping the weights, and a vocabulary takes hundreds of bytes a word.
"""

from penstock.service.server.served import ServedModel

KEPT = 4


class KeptWords:
    """The words of at most `most` models, those unloaded last."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._models: list[ServedModel] = []

    def take(self, model: ServedModel) -> None:
        """The model is loaded: its words are no longer ours to forget."""
        self._models = [one for one in self._models if one is not model]

    def keep(self, model: ServedModel) -> None:
        """The model is unloaded."""
        self.take(model)
        self._models.append(model)
        while len(self._models) > self._most:
            self._models.pop(0).forget_text()
