"""The sampler: from rows of scores to tokens, by everything a request may ask of its draws.

Rows of scores are not sequences: a sequence whose drafts are verified has one for each position. What a sequence asks stands in
its column of a `SamplingTable`, at fixed addresses, so that a recorded step reads what stands there when it is replayed.

    scores -> penalties -> biases -> tokens that may not be drawn -> temperature -> top-k, top-p, min-p -> one token
"""

from typing import NamedTuple

import torch
from torch import Tensor

from penstock.runtime.ops.op import operation
from penstock.runtime.ops.sampling.draw import Penalties, SamplingTensors, draw, likeliest, penalize, uniform
from penstock.runtime.ops.sampling.whole import NOT_DRAWN

NOTHING_LEFT = -2
"""Stands for the token of a row of scores of which no token may be drawn."""

PENALTIES, BIAS, ALLOWED, STOPS, RUNS, FILTERS, MASKED = (1 << bit for bit in range(7))
"""What a row of scores asks for beside its temperature. `MASKED` is known by the step alone."""
ADJUSTS = PENALTIES | BIAS | ALLOWED | STOPS | RUNS | MASKED
WORD = 32
"""Tokens in a word of a bitmask: bit `token % 32` of word `token // 32` says that the token may be drawn."""


class SamplingTable(NamedTuple):
    """What each row asks, [rows] each unless said."""

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    seed: Tensor
    choice: Tensor
    top_k: Tensor
    prompt_length: Tensor
    min_length: Tensor
    """Tokens, the prompt's counted, before which no stop token is drawn."""
    flags: Tensor
    """int32: which of the things above differ from what most requests ask."""
    allowed: Tensor
    """int32 [rows, words]: a bitmask, read where `ALLOWED` is set."""
    spans: Tensor
    """int32 [6, rows]: where in `lists` a row's biases, stops and banned runs begin and end."""
    lists: Tensor
    """int32. Biases are token ids, then as many float32; stops are token ids; banned runs are a (place, length) each, then
    their tokens, places counted from the first of these pairs."""


class Draws(NamedTuple):
    """Which rows of scores are drawn from, int64 [scores] each."""

    rows: Tensor
    positions: Tensor
    """Of the token before the one that is drawn."""
    masks: Tensor
    """Which row of the step's bitmasks holds; -1 for none."""


class Needs(NamedTuple):
    """What some row of scores of a step may need; what none needs is left out."""

    adjusts: bool = False
    filters: bool = False
    by_count: bool = False
    """Some filter is a top-k."""
    by_mass: bool = False
    """Some filter is a top-p."""


def num_words(vocab_size: int) -> int:
    """Of a bitmask over the vocabulary."""
    return -(-vocab_size // WORD)


def active_flags(draws: Draws, table: SamplingTable) -> Tensor:
    """What each row of scores asks for at its position."""
    flags = table.flags[draws.rows]
    is_early = draws.positions + 1 < table.min_length[draws.rows]
    flags = torch.where(is_early, flags, flags & ~STOPS)
    return torch.where(draws.masks >= 0, flags | MASKED, flags)


def unpacked(words: Tensor, vocab_size: int) -> Tensor:
    """Bitmasks as booleans, [..., vocabulary]."""
    bytes_ = words.contiguous().view(torch.uint8)  # the lowest first, as every machine here has them
    bits = bytes_[..., None] & torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=words.device)
    return bits.flatten(-2)[..., :vocab_size] != 0


@operation
def sample(scores: Tensor, draws: Draws, bits: Tensor, tokens: Tensor, table: SamplingTable, needs: Needs) -> Tensor:
    """A token id, int64, for each row of scores [scores, vocabulary], of any float; `bits` are the step's bitmasks.

    NOT_DRAWN where a score is not finite, NOTHING_LEFT where no token may be drawn. The scores stay as they are; `tokens` are
    those of all sequences by position.
    """
    logits = scores.float()
    is_finite = torch.isfinite(logits.sum(-1))
    if needs.adjusts:
        logits = adjust(logits, draws, bits, tokens, table)
    rows = draws.rows
    temperature = table.temperature[rows]
    if bool(temperature.any()):
        keys = uniform(table.seed[rows], table.choice[rows], draws.positions)
        drawn = draw(
            logits, SamplingTensors(temperature, table.top_k[rows], table.top_p[rows], table.min_p[rows], keys)
        )
    else:
        drawn = likeliest(logits)
    if needs.adjusts:
        drawn = torch.where(logits.amax(-1) > -torch.inf, drawn, NOTHING_LEFT)
    return torch.where(is_finite, drawn, NOT_DRAWN)


def adjust(logits: Tensor, draws: Draws, bits: Tensor, tokens: Tensor, table: SamplingTable) -> Tensor:
    """The scores by penalties and biases, -inf where a token may not be drawn."""
    flags = active_flags(draws, table)
    adjusted = logits.clone()
    penalized = (flags & PENALTIES != 0).nonzero()[:, 0]
    if len(penalized):
        rows, lengths = draws.rows[penalized], draws.positions[penalized] + 1
        numbers = Penalties(table.repetition[rows], table.presence[rows], table.frequency[rows])
        history = tokens[:, : int(lengths.max())].index_select(0, rows)
        scores = adjusted[penalized]
        penalize(scores, history, table.prompt_length[rows], lengths, numbers)
        adjusted[penalized] = scores
    special = flags.tolist()
    for index, (row, position, mask) in enumerate(zip(*(column.tolist() for column in draws))):
        if special[index] & (ADJUSTS & ~PENALTIES):
            _forbid(adjusted[index], special[index], row, position, bits[mask] if mask >= 0 else None, tokens, table)
    return adjusted


def _forbid(
    scores: Tensor, flags: int, row: int, position: int, mask: Tensor | None, tokens: Tensor, table: SamplingTable
) -> None:
    biases, stops, runs = (table.lists[begin:end] for begin, end in table.spans[:, row].view(3, 2).tolist())
    if flags & BIAS:
        ids, values = biases.chunk(2)
        scores.index_add_(0, ids, values.view(torch.float32))
    for words in (table.allowed[row] if flags & ALLOWED else None, mask):
        if words is not None:
            scores.masked_fill_(~unpacked(words, len(scores)), -torch.inf)
    if flags & STOPS:
        scores.index_fill_(0, stops.long(), -torch.inf)
    if flags & RUNS:
        scores.index_fill_(0, _completing(runs, tokens[row, : position + 1]), -torch.inf)


def _completing(runs: Tensor, text: Tensor) -> Tensor:
    """The tokens that would complete a banned run behind a text."""
    found = []
    heads = runs[: runs[0] if len(runs) else 0].view(-1, 2)
    for length in sorted(set(heads[:, 1].tolist())):
        places = heads[heads[:, 1] == length, 0]
        banned = runs[places[:, None] + torch.arange(length, device=runs.device)]
        if length <= len(text) + 1:
            is_behind = (banned[:, :-1] == text[len(text) + 1 - length :]).all(1)
            found.append(banned[is_behind, -1].long())
    return torch.cat(found) if found else runs.new_empty(0, dtype=torch.int64)
