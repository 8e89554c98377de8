"""What sequences ask of their draws: by row, on the host as values and on the device at fixed addresses.

Fed by arrivals alone. Token ids outside the vocabulary are left out: they can neither be drawn nor forbidden.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.errors import EngineError
from penstock.runtime.core.batch import Arrival
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.execution.eager.upload import to_device
from penstock.runtime.ops.sampling.sample import (
    ALLOWED,
    BIAS,
    FILTERS,
    PENALTIES,
    RUNS,
    STOPS,
    WORD,
    SamplingTable,
    num_words,
)

Words = npt.NDArray[np.int32]

FIRST_CAPACITY = 1 << 14
"""Numbers in lists of tokens that there is place for at first."""


@dataclass(frozen=True, slots=True)
class RowSampling:
    """One sequence's sampling parameters, as its steps look at them."""

    params: SamplingParams
    choice: int
    prompt_length: int
    flags: int
    """What is asked for beside a temperature, as `ops.sample` names it."""
    min_length: int
    """Tokens, the prompt's counted, before which no stop token is drawn."""
    is_pure_argmax: bool
    """Nothing is asked for but the token with the highest score."""
    is_plain: bool
    """Nothing is asked for but a temperature: no flags, no log probabilities."""

    @property
    def wants_prompt_logprobs(self) -> bool:
        """The first choice reports them for all choices."""
        return self.params.prompt_logprobs is not None and self.choice == 0

    def flags_at(self, position: int) -> int:
        """What is asked of the draw after a position."""
        return self.flags if position + 1 < self.min_length else self.flags & ~STOPS


def row_sampling(arrival: Arrival) -> RowSampling:
    params = arrival.params
    is_bounded = params.min_tokens > 0 and not params.ignore_eos and bool(params.stop_token_ids)
    is_limited = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
    flags = PENALTIES * params.has_penalties | BIAS * bool(params.logit_bias)
    flags |= ALLOWED * bool(params.allowed_token_ids) | RUNS * bool(params.banned_sequences)
    flags |= STOPS * is_bounded | FILTERS * (is_limited and not params.is_greedy)
    is_plain = not flags and params.logprobs is None and params.prompt_logprobs is None
    return RowSampling(
        params=params,
        choice=arrival.choice,
        prompt_length=arrival.prompt_length,
        flags=flags,
        min_length=arrival.prompt_length + params.min_tokens if is_bounded else 0,
        is_pure_argmax=is_plain and params.is_greedy,
        is_plain=is_plain,
    )


class SamplingStates:
    """Of all rows. `table` and `bits` keep their addresses until `epoch` changes."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self._device = device
        self._rows: list[RowSampling | None] = [None] * num_rows
        self.special = set[int]()
        """Rows that ask for more than a temperature."""
        self.demanding = set(range(num_rows))
        """Rows that ask for more than the likeliest token, or that are free."""
        self._lists: dict[int, tuple[Words, ...]] = {}
        """Biases, stops and banned runs of the rows that have any."""
        self._num_listed = 0
        self.epoch = 0
        self._numbers = torch.zeros((6, num_rows), device=device)
        self._keys = torch.zeros((5, num_rows), dtype=torch.int64, device=device)
        shapes = (num_rows,), (num_rows, num_words(vocab_size)), (6, num_rows), (FIRST_CAPACITY,)
        words = [torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes]
        self.table = SamplingTable(*self._numbers, *self._keys, *words)
        self.bits = torch.zeros((num_rows, num_words(vocab_size)), dtype=torch.int32, device=device)
        """The step's own bitmasks, for rows of scores that point to them."""

    def of(self, row: int) -> RowSampling:
        sampling = self._rows[row]
        if sampling is None:
            raise EngineError(f"row {row} is computed before a sequence has taken it")
        return sampling

    def take(self, arrivals: Sequence[tuple[int, Arrival]]) -> None:
        """Sequences take their rows."""
        taken = [(row, row_sampling(arrival)) for row, arrival in arrivals]
        for row, sampling in taken:
            self._rows[row] = sampling
            (self.special.discard if sampling.is_plain else self.special.add)(row)
            (self.demanding.discard if sampling.is_pure_argmax else self.demanding.add)(row)
            self._lists.pop(row, None)
        rows = self._upload([row for row, _ in taken])
        self._numbers[:, rows] = self._upload([_numbers(sampling) for _, sampling in taken]).t()
        self._keys[:, rows] = self._upload([_keys(sampling) for _, sampling in taken]).t()
        self.table.flags[rows] = self._upload([sampling.flags for _, sampling in taken]).int()
        for row, sampling in taken:
            if sampling.flags & (BIAS | STOPS | RUNS):
                self._keep_lists(row, sampling)
            if sampling.flags & ALLOWED:
                words = bitmask(sampling.params.allowed_token_ids, self.vocab_size)
                self.table.allowed[row] = to_device(torch.from_numpy(words), self._device)

    def empty_bits(self, num_masks: int) -> Tensor:
        """Memory for bitmasks in this machine, from where they go to the device fastest."""
        is_pinned = self._device.type == "cuda"
        return torch.empty((num_masks, self.bits.shape[1]), dtype=torch.int32, pin_memory=is_pinned)

    def set_bits(self, words: Tensor) -> None:
        """Lay down the step's bitmasks, [masks, words]."""
        if len(words) > len(self.bits):
            self.epoch += 1
            self.bits = torch.zeros((2 * len(words), self.bits.shape[1]), dtype=torch.int32, device=self._device)
        self.bits[: len(words)].copy_(words, non_blocking=True)

    def _keep_lists(self, row: int, sampling: RowSampling) -> None:
        lists = (
            _biases(sampling.params.logit_bias, self.vocab_size),
            np.array(self._known(sampling.params.stop_token_ids), dtype=np.int32),
            _runs(sampling.params.banned_sequences, self.vocab_size),
        )
        self._lists[row] = lists
        size = sum(map(len, lists))
        if self._num_listed + size <= len(self.table.lists):
            self._lay_down(row, self._num_listed)
            self._num_listed += size
        else:
            self._lay_down_all()

    def _lay_down(self, row: int, begin: int) -> None:
        lists = self._lists[row]
        ends = begin + np.cumsum([len(words) for words in lists])
        spans = np.stack((np.concatenate(([begin], ends[:-1])), ends), 1).ravel()
        self.table.lists[begin : ends[-1]] = to_device(torch.from_numpy(np.concatenate(lists)), self._device)
        self.table.spans[:, row] = to_device(torch.from_numpy(spans).int(), self._device)

    def _lay_down_all(self) -> None:
        """Side by side from the beginning, in more memory if that does not do."""
        total = sum(len(words) for lists in self._lists.values() for words in lists)
        if 2 * total > len(self.table.lists):
            self.epoch += 1
            lists = torch.zeros(4 * total, dtype=torch.int32, device=self._device)
            self.table = self.table._replace(lists=lists)
        self._num_listed = 0
        for row, kept in self._lists.items():
            self._lay_down(row, self._num_listed)
            self._num_listed += sum(map(len, kept))

    def _known(self, ids: Iterable[int]) -> list[int]:
        return [token for token in ids if 0 <= token < self.vocab_size]

    def _upload(self, values: Sequence[object]) -> Tensor:
        return to_device(torch.tensor(values), self._device)


def bitmask(ids: Iterable[int], vocab_size: int) -> Words:
    """The words of a mask that allows some tokens."""
    is_allowed = np.zeros(num_words(vocab_size) * WORD, dtype=bool)
    is_allowed[[token for token in ids if 0 <= token < vocab_size]] = True
    return np.packbits(is_allowed, bitorder="little").view(np.int32)


def _numbers(sampling: RowSampling) -> tuple[float, ...]:
    """In the order of the table's first columns."""
    p = sampling.params
    penalties = float(p.repetition_penalty), float(p.presence_penalty), float(p.frequency_penalty)
    return float(p.temperature), float(p.top_p), float(p.min_p), *penalties


def _keys(sampling: RowSampling) -> tuple[int, ...]:
    """In the order of the columns after those."""
    params = sampling.params
    return params.seed, sampling.choice, params.top_k, sampling.prompt_length, sampling.min_length


def _biases(pairs: tuple[tuple[int, float], ...], vocab_size: int) -> Words:
    known = {token: value for token, value in pairs if 0 <= token < vocab_size}
    ids = np.array(list(known), dtype=np.int32)
    return np.concatenate((ids, np.array(list(known.values()), dtype=np.float32).view(np.int32)))


def _runs(sequences: tuple[tuple[int, ...], ...], vocab_size: int) -> Words:
    """(place from here, length) of each run, then the runs themselves."""
    known = [run for run in sequences if run and all(0 <= token < vocab_size for token in run)]
    lengths = np.array([len(run) for run in known], dtype=np.int64)
    places = 2 * len(known) + np.cumsum(lengths) - lengths
    head = np.stack((places, lengths), 1).ravel()
    tokens = np.array([token for run in known for token in run], dtype=np.int64)
    return np.concatenate((head, tokens)).astype(np.int32)
