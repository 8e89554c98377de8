"""What a CUDA runner keeps of its rows on the device beside their tokens: block tables and sampling parameters."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.core.batch import Chunk
from penstock.core.request import SamplingParams
from penstock.ops.draw import NOT_DRAWN, DrawKeys, draw_whole
from penstock.ops.rows import keep_drawn
from penstock.ops.sampling import SamplingTensors, draw, uniform
from penstock.runtime.eager.rows import Rows
from penstock.runtime.eager.sampler import are_finite


class DeviceRows:
    """Fed by batches like `Rows`, of which it is the other half. A row nobody holds has all its blocks in `idle_block`."""

    def __init__(self, rows: Rows, num_rows: int, max_blocks: int, idle_block: int, device: torch.device) -> None:
        self._rows = rows
        self._device = device
        self.tables = torch.full((num_rows, max_blocks), idle_block, dtype=torch.int32, device=device)
        self._numbers = torch.zeros((4, num_rows), device=device)
        """temperature, top_k, top_p, min_p of each row."""
        self._seeds = torch.zeros((2, num_rows), dtype=torch.int64, device=device)
        """seed and choice of each row."""
        self._needs_host = [False] * num_rows
        self._is_filtered = [False] * num_rows

    @property
    def tokens(self) -> Tensor:
        return self._rows.tokens

    def needs_host(self, chunk: Chunk) -> bool:
        """The host has to look at the scores to draw for it."""
        return self._needs_host[chunk.row] or chunk.num_drafts > 0

    def is_filtered(self, chunk: Chunk) -> bool:
        """It draws from a part of the vocabulary."""
        return self._is_filtered[chunk.row]

    def take_arrivals(self, chunks: Sequence[Chunk]) -> None:
        arrivals = [(chunk.row, chunk.arrival) for chunk in chunks if chunk.arrival is not None]
        if not arrivals:
            return
        for row, arrival in arrivals:
            self._needs_host[row] = _needs_host(arrival.params)
            self._is_filtered[row] = _is_filtered(arrival.params)
        params = [arrival.params for _, arrival in arrivals]
        rows = self._upload([row for row, _ in arrivals])
        self._numbers[:, rows] = self._upload([(p.temperature, p.top_k, p.top_p, p.min_p) for p in params]).t().float()
        self._seeds[:, rows] = self._upload([(arrival.params.seed, arrival.choice) for _, arrival in arrivals]).t()

    def take_blocks(self, chunks: Sequence[Chunk]) -> None:
        """After `Rows.place`: send the tables of rows that grew."""
        grown = [chunk.row for chunk in chunks if chunk.new_blocks]
        if grown:
            tables = torch.from_numpy(self._rows.tables(np.array(grown)))
            self.tables[self._upload(grown)] = tables.to(self._device, non_blocking=True)

    def draw(self, scores: Tensor, rows: Tensor, positions: Tensor, *, filtered: bool = False) -> Tensor:
        """A token after each position, NOT_DRAWN where the scores are not finite. It stays in its row."""
        seeds, choices = self._seeds[:, rows]
        keys = DrawKeys(seeds, choices, positions)
        temperature, top_k, top_p, min_p = self._numbers[:, rows]
        if filtered:
            logits = scores.float()
            drawn = draw(logits, SamplingTensors(temperature, top_k.long(), top_p, min_p, uniform(*keys)))
            drawn = torch.where(are_finite(logits), drawn, NOT_DRAWN)
        else:
            drawn = draw_whole(scores, temperature, keys)
        keep_drawn(self.tokens, rows, positions, drawn)
        return drawn

    def _upload(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values).to(self._device, non_blocking=True)


def _needs_host(params: SamplingParams) -> bool:
    adjusts = params.reads_history or params.logit_bias or params.allowed_token_ids or params.min_tokens
    return bool(adjusts) or params.logprobs is not None or params.prompt_logprobs is not None


def _is_filtered(params: SamplingParams) -> bool:
    return not params.is_greedy and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)
