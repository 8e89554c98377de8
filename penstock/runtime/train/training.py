"""Training and measuring heads: losses, schedule, held-out acceptance.

A head learns the target's distribution over the draft vocabulary and, if its states are fed back, the target's states
themselves: they carry more than a token does. Deeper guesses are trained in the second part of the time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.train.examples import Example, Padded, batches, pad

BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
MAX_SCORED = {"cpu": 512, "cuda": 16384}
"""Positions of a batch whose distributions are compared, for each guess: the vocabulary is what takes time."""
SHALLOW_FRACTION = 0.4
"""Share of the time in which only the first guess is trained."""
DEPTH_WEIGHT = 0.8
"""Weight of each guess over that of the guess before it."""
WARM_UP_FRACTION = 0.03
SEED = 7


@dataclass(frozen=True, slots=True)
class Schedule:
    depth: int
    seconds: float
    rate: float
    states_weight: float
    """Weight of the states' loss beside that of the distributions; 0 where only tokens count."""


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Torch's own threads, which a native model leaves at one; the library's are asleep meanwhile."""
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(count or before)
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)


@dataclass(frozen=True, slots=True)
class Trained:
    num_batches: int
    num_tokens: int
    loss: float


def train(
    module: torch.nn.Module,
    examples: Sequence[Example],
    output: Tensor,
    schedule: Schedule,
    clock: Callable[[], float],
    progress: Callable[[float, float], None],
) -> Trained:
    """Train until the time is over. `output` are the rows of the target's output matrix that heads choose by; `progress` is
    told the share of the time that is over and the loss."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=schedule.rate, betas=(0.9, 0.95), weight_decay=0.01)
    generator = torch.Generator().manual_seed(SEED)
    begin_s = clock()
    num_batches = num_tokens = 0
    loss_seen = 0.0
    for texts in batches(examples, BATCH_TOKENS[output.device.type], SEED, output.device):
        done = (clock() - begin_s) / schedule.seconds
        if done >= 1.0 and num_batches:
            break
        depth = 1 if done < SHALLOW_FRACTION else schedule.depth
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate * min(done / WARM_UP_FRACTION + 0.02, 1.0) * (1.02 - min(done, 1.0))
        loss = head_loss(module, texts, output, depth, schedule.states_weight, generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        num_batches += 1
        num_tokens += int(texts.is_answer.sum())
        loss_seen += (float(loss.detach()) - loss_seen) * (0.05 if num_batches > 20 else 1.0 / num_batches)
        progress(min(done, 1.0), loss_seen)
    return Trained(num_batches, num_tokens, loss_seen)


def head_loss(
    module: torch.nn.Module,
    texts: Padded,
    output: Tensor,
    depth: int,
    states_weight: float,
    generator: torch.Generator,
) -> Tensor:
    total = torch.zeros((), device=output.device)
    predicted: list[Tensor] = module.predict(texts, depth)  # type: ignore[operator]
    for number, states in enumerate(predicted):
        places = judged(texts, number).nonzero()
        if not len(places):
            continue
        if states_weight:
            here, true = states[tuple(places.T)], texts.states[:, 1:][tuple(places.T)]
            total = total + DEPTH_WEIGHT**number * states_weight * functional.smooth_l1_loss(here, true)
        order = torch.randperm(len(places), generator=generator)[: MAX_SCORED[output.device.type]]
        chosen = places[order.to(places.device)]
        here, true = states[tuple(chosen.T)], texts.states[:, 1:][tuple(chosen.T)]
        with torch.no_grad():
            wanted = (true @ output.T).softmax(-1)
        total = total - DEPTH_WEIGHT**number * (wanted * (here @ output.T).log_softmax(-1)).sum(-1).mean()
    return total


def judged(texts: Padded, number: int) -> Tensor:
    """Which entries of guess `number` count: those whose token, that of position entry + 2, is of an answer."""
    wanted = functional.pad(texts.is_answer[:, 2:], (0, 1))
    wanted[:, :number] = False
    return wanted


@torch.no_grad()
def acceptance(
    module: torch.nn.Module, examples: Sequence[Example], output: Tensor, token_ids: Tensor, depth: int
) -> list[float]:
    """By guess, how often it is the true token where all guesses before it were."""
    hits, trials = [0] * depth, [0] * depth
    for first in range(0, len(examples), 4):
        texts = pad(examples[first : first + 4], output.device)
        came = functional.pad(texts.tokens[:, 2:], (0, 1), value=-1)
        is_open = torch.ones_like(came, dtype=torch.bool)
        predicted: list[Tensor] = module.predict(texts, depth)  # type: ignore[operator]
        for number, states in enumerate(predicted):
            is_judged = judged(texts, number)
            # Guess `number` at an entry follows guess `number - 1` at the entry before.
            is_open = functional.pad(is_open[:, :-1], (1, 0)) if number else is_open
            is_judged &= is_open
            is_right = torch.zeros_like(is_open)
            is_right[is_judged] = token_ids[(states[is_judged] @ output.T).argmax(-1)] == came[is_judged]
            hits[number] += int(is_right.sum())
            trials[number] += int(is_judged.sum())
            is_open = is_right
    return [hit / max(trial, 1) for hit, trial in zip(hits, trials)]
