"""Runs texts through an encoder: many short ones in a pass, each text whole in one pass."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.errors import RequestError
from penstock.runtime.layers.encoder import Encoder
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.ops.layout import BatchLayout


class TextEncoder:
    def __init__(self, model: Encoder, max_batch_tokens: int = 4096) -> None:
        self._model = model
        self._device = model.device
        self._max_batch_tokens = max_batch_tokens
        self._rotations = Rotations(model.spec, model.spec.max_context, self._device)

    @torch.inference_mode()
    def encode(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """One vector of length 1 for each text, [texts, hidden]."""
        for number, text in enumerate(texts):
            self._check(number, text)
        vectors = torch.empty((len(texts), self._model.spec.hidden_size))
        for numbers in self._batches(texts):
            token_ids, step = self._inputs([texts[number] for number in numbers])
            vectors[numbers] = self._model.encode(token_ids, step).cpu()
        return vectors.numpy()

    def _check(self, number: int, text: Sequence[int]) -> None:
        spec = self._model.spec
        if not 0 < len(text) <= spec.max_context:
            raise RequestError(
                f"text {number} has {len(text):,} tokens; this model takes 1 to {spec.max_context:,}: shorten or split it",
                param="input",
            )
        if not all(0 <= token < spec.vocab_size for token in text):
            raise RequestError(
                f"text {number} has token ids outside the vocabulary of {spec.vocab_size}", param="input"
            )

    def _batches(self, texts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Numbers of texts of like length, as many as the budget of tokens allows."""
        batches: list[list[int]] = []
        room = 0
        for number in sorted(range(len(texts)), key=lambda each: len(texts[each])):
            if not batches or len(texts[number]) > room:
                batches.append([])
                room = self._max_batch_tokens
            batches[-1].append(number)
            room -= len(texts[number])
        return batches

    def _inputs(self, texts: list[Sequence[int]]) -> tuple[Tensor, Step]:
        lengths = [len(text) for text in texts]
        token_ids = torch.tensor([token for text in texts for token in text], device=self._device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(self._device)
        nothing = torch.empty(0, dtype=torch.int32, device=self._device)
        starts = torch.tensor([0, *lengths], device=self._device).cumsum(0).int()
        layout = BatchLayout(positions, nothing, nothing, starts, starts[1:] - starts[:-1], lengths, lengths)
        return token_ids, Step(layout, self._rotations.at(positions), ())
