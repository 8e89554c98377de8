"""Forward passes of ranks that share a vocabulary: where only likeliest tokens are asked for, no rank lays all scores down.

Each finds the best of its own tokens; what is exchanged is three numbers a row instead of a vocabulary's.
"""

import torch
from torch import Tensor

from penstock.runtime.execution.eager.forward import EagerForward, LikeliestStates, RunnerParts
from penstock.runtime.execution.eager.sampler import DrawPlan
from penstock.runtime.execution.parallel.native import NativePart
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.parallel import VocabularyScores
from penstock.runtime.ops.sampling.whole import NOT_DRAWN


class SharedForward(EagerForward):
    kind = LikeliestStates

    def __init__(self, model: Decoder | NativePart, table: VocabularyScores | NativePart, parts: RunnerParts) -> None:
        """`table` is the part of the vocabulary that this rank has."""
        super().__init__(model, parts)
        self._table = table

    def finds(self, plan: DrawPlan) -> bool:
        return plan.is_pure_argmax and not plan.logprobs

    def choose(self, states: Tensor, rows: Tensor, masks: Tensor) -> Tensor:
        """The likeliest token of all ranks' after each state."""
        if self._rows.adapters is not None:
            self._rows.adapters.set_rows(rows)
        chosen, are_good = self._table.likeliest(states)
        return torch.where(are_good, chosen, NOT_DRAWN).int()
