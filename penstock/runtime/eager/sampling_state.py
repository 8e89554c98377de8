"""A sequence's sampling parameters, made ready for drawing when it takes its row."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.core.batch import Arrival
from penstock.core.request import SamplingParams


@dataclass(frozen=True, slots=True)
class BannedRuns:
    """Banned sequences of one length: [count, length - 1] and the token that would complete each, [count]."""

    prefixes: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Token ids outside the vocabulary are left out: they can neither be drawn nor forbidden. None stands for no tokens."""

    params: SamplingParams
    choice: int
    prompt_length: int
    is_plain: bool
    """The scores of the model are drawn from as they are."""
    is_greedy: bool
    is_pure_argmax: bool
    """Nothing is asked for but the token with the highest score."""
    bias: tuple[Tensor, Tensor] | None
    """Token ids and what is added to their scores."""
    allowed: Tensor | None
    banned: Tensor | None
    banned_runs: tuple[BannedRuns, ...]
    stops: Tensor | None
    """Not to be drawn before `min_tokens`."""

    @property
    def wants_prompt_logprobs(self) -> bool:
        """The first choice reports them for all choices."""
        return self.params.prompt_logprobs is not None and self.choice == 0


def make_row_sampling(arrival: Arrival, vocab_size: int, device: torch.device) -> RowSampling:
    params = arrival.params

    def known(ids: Collection[int]) -> Tensor | None:
        if not ids:
            return None
        return torch.tensor([token for token in ids if 0 <= token < vocab_size], dtype=torch.int64, device=device)

    is_bounded = params.min_tokens > 0 and not params.ignore_eos
    is_more_reported = params.logprobs is not None or params.prompt_logprobs is not None
    is_plain = not (params.reads_history or params.logit_bias or params.allowed_token_ids or is_bounded)
    return RowSampling(
        params=params,
        choice=arrival.choice,
        prompt_length=arrival.prompt_length,
        is_plain=is_plain,
        is_greedy=params.is_greedy,
        is_pure_argmax=is_plain and params.is_greedy and not is_more_reported,
        bias=_bias(params.logit_bias, vocab_size, device),
        allowed=known(params.allowed_token_ids),
        banned=known([run[0] for run in params.banned_sequences if len(run) == 1]),
        banned_runs=_banned_runs(params.banned_sequences, vocab_size, device),
        stops=known(params.stop_token_ids if is_bounded else ()),
    )


def _bias(pairs: tuple[tuple[int, float], ...], vocab_size: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    known = {token: value for token, value in pairs if 0 <= token < vocab_size}
    if not known:
        return None
    return torch.tensor(list(known), device=device), torch.tensor(list(known.values()), device=device)


def _banned_runs(
    sequences: tuple[tuple[int, ...], ...], vocab_size: int, device: torch.device
) -> tuple[BannedRuns, ...]:
    by_length: dict[int, list[tuple[int, ...]]] = {}
    for run in sequences:
        if len(run) > 1 and all(0 <= token < vocab_size for token in run):
            by_length.setdefault(len(run), []).append(run)
    tables = (torch.tensor(runs, dtype=torch.int64, device=device) for runs in by_length.values())
    return tuple(BannedRuns(table[:, :-1], table[:, -1]) for table in tables)
