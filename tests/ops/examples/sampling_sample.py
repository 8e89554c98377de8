"""Arguments of the operations of `ops.sampling.sample`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.ops.sampling.sample import (
    ADJUSTS,
    ALLOWED,
    BIAS,
    FILTERS,
    MASKED,
    PENALTIES,
    RUNS,
    STOPS,
    WORD,
    Draws,
    Needs,
    SamplingTable,
    num_words,
    sample,
)
from tests.ops.examples import examples_of


def packed(allowed: Tensor) -> Tensor:
    """Booleans [..., vocabulary] as bitmasks."""
    padding = -allowed.shape[-1] % WORD
    bits = torch.nn.functional.pad(allowed.long(), (0, padding)).view(*allowed.shape[:-1], -1, WORD)
    words = (bits << torch.arange(WORD, device=allowed.device)).sum(-1)
    return torch.where(words >= 1 << (WORD - 1), words - (1 << WORD), words).int()


@examples_of(sample)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(15)
    for vocab_size, dtype in ((70, torch.float32), (4200, torch.float16)):
        table, tokens = _example_table(vocab_size, device, generator)
        rows = torch.arange(len(table.flags), device=device).flip(0)
        draws = Draws(rows, torch.where(rows % 3 == 1, 14, 9), torch.where(rows == 7, 1, torch.where(rows == 0, 0, -1)))
        bits = torch.randint(-(2**31), 2**31, (3, num_words(vocab_size)), generator=generator, device=device).int()
        scores = (torch.randn((len(rows), vocab_size), generator=generator, device=device) * 3).to(dtype)
        yield scores, draws, bits, tokens, table, Needs(True, True, True, True)
        unfiltered = table._replace(
            flags=table.flags & ~FILTERS, top_k=table.top_k * 0, top_p=table.top_p * 0 + 1, min_p=table.min_p * 0
        )
        ruined = scores.clone()
        ruined[0, 3], ruined[5, 1], ruined[9, 2] = torch.nan, torch.inf, torch.nan
        yield ruined, draws, torch.zeros_like(bits), tokens, unfiltered, Needs(True, False)
        if dtype != torch.float32:
            continue
        plain = (table.flags[rows] & ADJUSTS == 0).nonzero()[:, 0]
        some = Draws(rows[plain], draws.positions[plain], torch.full_like(plain, -1))
        yield scores[plain], some, bits, tokens, table, Needs(False, True, True, True)
        # Each by itself: what of the filters nobody asks for is left out.
        whole = table._replace(top_p=table.top_p * 0 + 1)
        yield scores[plain], some, bits, tokens, whole, Needs(False, True, True, False)
        every = table._replace(top_k=table.top_k * 0)
        yield scores[plain], some, bits, tokens, every, Needs(False, True, False, True)


def _example_table(vocab_size: int, device: torch.device, generator: torch.Generator) -> tuple[SamplingTable, Tensor]:
    """A row for each thing that can be asked, and one for all of them together."""

    def column(*values: float) -> Tensor:
        return torch.tensor(values, device=device)

    alone = [0, PENALTIES, BIAS, ALLOWED, STOPS, RUNS, FILTERS, FILTERS, FILTERS]
    asked = [*alone, FILTERS | ADJUSTS & ~MASKED, PENALTIES]
    num_rows = len(asked)
    tokens = torch.randint(0, 9, (num_rows, 20), generator=generator, device=device).int()
    tokens[:, 8:10] = torch.tensor([4, 5])
    allowed = torch.rand((num_rows, vocab_size), generator=generator, device=device) < 0.3
    biases = torch.tensor([5, 9, 11], dtype=torch.int32), torch.tensor([4.0, -3.0, 2.5]).view(torch.int32)
    stops, runs = torch.tensor([1, 2, 3, 60]), torch.tensor([6, 2, 8, 3, 11, 4, 4, 7, 4, 5, 8, 9, 9, 4, 9])
    lists = torch.cat((*biases, stops, runs)).int().to(device)
    spans = torch.tensor([0, 6, 6, 10, 10, 25], device=device).int()[:, None].repeat(1, num_rows)
    ones, zeros = torch.ones(num_rows, device=device), torch.zeros(num_rows, device=device)
    whole = torch.arange(num_rows, device=device)
    table = SamplingTable(
        temperature=column(1.0, 1.0, 0.0, 0.8, 1.0, 0.0, 1.0, 0.7, 1.3, 0.9, 0.0),
        top_p=column(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.95, 0.9, 1.0),
        min_p=column(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.0, 0.01, 0.0, 0.0),
        repetition=torch.where(whole % 2 == 1, 1.3, 1.0).to(device),
        presence=torch.where(whole == 9, -0.5, 1.0 * (whole == 1)).to(device),
        frequency=zeros + 0.25,
        seed=whole * 31 - 7,
        choice=whole % 3,
        top_k=column(0, 0, 0, 0, 0, 0, 40, 0, 7, 20, 0).long(),
        prompt_length=(ones * 6).long(),
        min_length=(ones * 12).long(),
        flags=torch.tensor(asked, device=device).int(),
        allowed=packed(allowed),
        spans=spans,
        lists=lists,
    )
    return table, tokens
