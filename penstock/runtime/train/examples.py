"""Training examples: texts of the target with its hidden states at every position."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from penstock.errors import ConfigError
from penstock.runtime.formats.checkpoint import RawTensor
from penstock.runtime.formats.safetensors import open_safetensors
from penstock.runtime.formats.tensor_file import safetensors_metadata, write_safetensors

HELD_OUT_EVERY = 10
"""One text in so many is held out: acceptance is measured on these."""
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Tokens [n], and the final state of each position [n, hidden] in half precision."""

    tokens: Tensor
    states: Tensor
    num_prompt: int


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """Examples side by side: tokens [texts, n], states [texts, n, hidden], and whether a token is one of an answer."""

    tokens: Tensor
    states: Tensor
    is_answer: Tensor


def write_examples(path: Path, examples: Sequence[Example], fingerprint: str) -> None:
    """One file: all tokens, all states, and where each text begins and its prompt ends."""
    lengths = torch.tensor([(len(example.tokens), example.num_prompt) for example in examples])
    tensors = {
        "tokens": torch.cat([example.tokens for example in examples]),
        "states": torch.cat([example.states for example in examples]),
        "lengths": lengths,
    }
    write_safetensors(path, {name: each.numpy() for name, each in tensors.items()}, {"target_fingerprint": fingerprint})


def read_examples(path: Path, fingerprint: str, hidden_size: int) -> list[Example]:
    """ConfigError unless they are of this model."""
    file = open_safetensors(path)
    if (
        not {"tokens", "states", "lengths"} <= set(file.names)
        or safetensors_metadata(path).get("target_fingerprint") != fingerprint
    ):
        raise ConfigError(
            f"{path} does not hold answers of this model; name a file that does not exist to write them to"
        )
    tokens, lengths = (_integers(file.tensor(name)) for name in ("tokens", "lengths"))
    raw = file.tensor("states")
    states = torch.frombuffer(bytearray(raw.data.tobytes()), dtype=torch.float16).view(-1, hidden_size)
    ends = [0, *lengths.view(-1, 2)[:, 0].cumsum(0).tolist()]
    return [
        Example(tokens[begin:end], states[begin:end], int(num_prompt))
        for begin, end, num_prompt in zip(ends, ends[1:], lengths.view(-1, 2)[:, 1].tolist())
    ]


def _integers(raw: RawTensor) -> Tensor:
    return torch.frombuffer(bytearray(raw.data.tobytes()), dtype=torch.int64)


def split(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Examples to learn from, and examples held out."""
    learned = [example for number, example in enumerate(examples, 1) if number % HELD_OUT_EVERY]
    return learned, list(examples[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY])


def draft_vocabulary(examples: Sequence[Example], size: int, vocab_size: int) -> Tensor:
    """The most frequent tokens of the answers, ascending."""
    counts: Counter[int] = Counter()
    for example in examples:
        counts.update(example.tokens[example.num_prompt :].tolist())
    chosen = {token for token, _ in counts.most_common(size)}
    for token in range(vocab_size):  # early tokens are common ones in most vocabularies
        if len(chosen) >= min(size, vocab_size):
            break
        chosen.add(token)
    return torch.tensor(sorted(chosen))


def pad(examples: Sequence[Example], device: torch.device = CPU) -> Padded:
    length = max(len(example.tokens) for example in examples)
    tokens = torch.zeros((len(examples), length), dtype=torch.int64)
    states = torch.zeros((len(examples), length, examples[0].states.shape[-1]), dtype=examples[0].states.dtype)
    is_answer = torch.zeros((len(examples), length), dtype=torch.bool)
    for row, example in enumerate(examples):
        count = len(example.tokens)
        tokens[row, :count] = example.tokens
        states[row, :count] = example.states
        is_answer[row, example.num_prompt : count] = True
    return Padded(tokens.to(device), states.to(device).float(), is_answer.to(device))


def batches(examples: Sequence[Example], num_tokens: int, seed: int, device: torch.device) -> Iterator[Padded]:
    """Endless: all examples, shuffled, in batches of about so many tokens, those of similar length together."""
    choose = random.Random(seed)
    while True:
        ordered = sorted(examples, key=lambda example: len(example.tokens) + choose.random() * 40)
        groups: list[list[Example]] = []
        for example in ordered:
            if not groups or (len(groups[-1]) + 1) * len(example.tokens) > num_tokens:
                groups.append([])
            groups[-1].append(example)
        choose.shuffle(groups)
        yield from (pad(group, device) for group in groups)
