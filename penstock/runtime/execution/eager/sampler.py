"""From rows of scores to tokens: what of a step is drawn, and the draws themselves, on the rows' device.

The one sampler of all runners. A forward pass hands it rows of scores; a sequence has one of them, or one for each position
where drafts are verified. Nothing here waits for a device.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.runtime.core.batch import NO_TOKEN_LEFT, Chunk, Logprob
from penstock.runtime.execution.eager.sampling_state import SamplingStates
from penstock.runtime.ops.rows import keep_drawn
from penstock.runtime.ops.sampling.sample import ADJUSTS, FILTERS, MASKED, NOTHING_LEFT, Draws, Needs, sample
from penstock.runtime.ops.sampling.whole import NOT_DRAWN

FAILURES = {
    NOT_DRAWN: "the model gave numbers that are not finite for this sequence",
    NOTHING_LEFT: NO_TOKEN_LEFT,
}
"""Why no token stands for a row of scores."""
NOT_FINITE = FAILURES[NOT_DRAWN]
NOTHING, MASKS_ALONE = Needs(), Needs(adjusts=True)


class DrawPlan(NamedTuple):
    """What is drawn in a step: rows of scores, one after another."""

    rows: list[int]
    positions: list[int]
    """Of the token before the one that is drawn."""
    masks: list[int]
    """Which of the step's bitmasks holds; -1 for none."""
    owners: list[int]
    """The chunk each is of."""
    needs: Needs
    logprobs: list[tuple[int, int]]
    """(row of scores, how many of the likeliest) where log probabilities are asked for."""
    is_pure_argmax: bool
    """Nothing is asked for but likeliest tokens."""
    is_masked_argmax: bool = False
    """Likeliest tokens too, of some rows of scores those that the step's bitmasks allow."""


class LogprobTensors(NamedTuple):
    """Log probabilities on their way to the host, [count] and [count, most]."""

    tokens: Tensor
    values: Tensor
    top_tokens: Tensor
    top_values: Tensor
    counts: list[int]

    def sent(self) -> "LogprobTensors":
        """Copies in this machine's memory, there once the device has come so far."""
        tokens, values, *top = (part.to("cpu", non_blocking=True) for part in self[:4])
        return LogprobTensors(tokens, values, top[0], top[1], self.counts)

    def described(self) -> list[Logprob]:
        parts = zip(*(part.tolist() for part in self[:4]), self.counts)
        return [
            Logprob(token, value, tuple(zip(top_tokens[:count], top_values[:count])))
            for token, value, top_tokens, top_values, count in parts
        ]


class Sampler:
    def __init__(self, tokens: Tensor, states: SamplingStates) -> None:
        """`tokens` are those of all rows by position; what is drawn is left there."""
        self._tokens = tokens
        self._states = states

    @property
    def epoch(self) -> int:
        """Changes when what draws read lies elsewhere: what was recorded before is of no use then."""
        return self._states.epoch

    @property
    def vocab_size(self) -> int:
        return self._states.vocab_size

    def plan(self, chunks: Sequence[Chunk], masked: Mapping[int, int]) -> DrawPlan:
        """`masked` has the first bitmask of each chunk whose draws have one each."""
        rows: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        for index, chunk in enumerate(chunks):
            if chunk.samples:
                for position in range(chunk.end - 1 - chunk.num_drafts, chunk.end):
                    rows.append(chunk.row)
                    positions.append(position)
                    owners.append(index)
        is_plain = not masked and self._states.special.isdisjoint(rows)
        if is_plain:
            is_pure_argmax = self._states.demanding.isdisjoint(chunk.row for chunk in chunks)
            return DrawPlan(rows, positions, [-1] * len(rows), owners, NOTHING, [], is_pure_argmax)
        masks = [
            masked[owner] + position - (chunks[owner].end - 1 - chunks[owner].num_drafts) if owner in masked else -1
            for owner, position in zip(owners, positions)
        ]
        if self._states.demanding.isdisjoint(chunk.row for chunk in chunks):
            return DrawPlan(
                rows, positions, masks, owners, MASKS_ALONE, [], is_pure_argmax=False, is_masked_argmax=True
            )
        flags, logprobs = 0, []
        for number, (row, position, mask) in enumerate(zip(rows, positions, masks)):
            sampling = self._states.of(row)
            flags |= sampling.flags_at(position) | MASKED * (mask >= 0)
            if sampling.params.logprobs is not None:
                logprobs.append((number, sampling.params.logprobs))
        limits = [self._states.of(row).params for row in rows] if flags & FILTERS else []
        needs = Needs(
            adjusts=bool(flags & ADJUSTS),
            filters=bool(flags & FILTERS),
            by_count=any(params.top_k for params in limits),
            by_mass=any(params.top_p < 1 for params in limits),
        )
        return DrawPlan(rows, positions, masks, owners, needs, logprobs, is_pure_argmax=False)

    def draw(self, scores: Tensor, draws: Draws, needs: Needs) -> Tensor:
        """A token for each row of scores, or a key of `FAILURES`. It stays behind its position."""
        drawn = sample(scores, draws, self._states.bits, self._tokens, self._states.table, needs)
        self.keep(draws, drawn)
        return drawn

    def keep(self, draws: Draws, drawn: Tensor) -> None:
        """What was drawn stays behind its position."""
        keep_drawn(self._tokens, draws.rows, draws.positions, drawn)


def find_logprobs(scores: Tensor, chosen: Tensor, counts: list[int]) -> LogprobTensors:
    """Log probabilities of the chosen tokens and of the likeliest, by the model alone."""
    raw = torch.log_softmax(scores.float(), dim=-1)
    chosen = chosen.clamp(min=0)
    top_values, top_tokens = raw.topk(min(max(counts), raw.shape[1]), dim=-1)
    return LogprobTensors(chosen, raw.gather(1, chosen[:, None])[:, 0], top_tokens, top_values, counts)


def are_finite(numbers: Tensor) -> Tensor:
    """For each row, whether all its numbers are finite: only then is their sum."""
    return torch.isfinite(numbers.sum(-1, dtype=torch.float32))
