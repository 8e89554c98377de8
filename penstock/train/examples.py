"""What heads learn from: texts of the target with the hidden states it had while reading them."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

HELD_OUT_EVERY = 10
"""One text in so many is not learned from: what is measured on them was never seen."""
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


def split(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Those to learn from, and those held out."""
    held_out = [example for number, example in enumerate(examples) if number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    return [
        example for number, example in enumerate(examples) if number % HELD_OUT_EVERY != HELD_OUT_EVERY - 1
    ], held_out


def draft_vocabulary(examples: Sequence[Example], size: int, vocab_size: int) -> Tensor:
    """The tokens that answers are mostly made of, in ascending order."""
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
    """For ever: all examples, shuffled, about so many tokens at a time, those of like length together."""
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
