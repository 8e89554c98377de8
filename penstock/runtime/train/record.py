"""Hidden states of whole texts, recorded from a runner's own steps while it generates, or while it computes known texts."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from penstock.runtime.core.batch import Arrival, Batch, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.execution.eager.runner import StepRunner
from penstock.runtime.train.examples import Example

GREEDY = SamplingParams(temperature=0.0)
Transcript = tuple[Sequence[int], Sequence[int]]
"""Tokens of a prompt and of the answer to it."""


class Recorder:
    """Keeps the hidden states of a runner's last step."""

    def __init__(self) -> None:
        self.hidden = torch.empty(0)

    def put(self, chunks: Sequence[Chunk], hidden: Tensor) -> None:
        self.hidden = hidden[: sum(chunk.length for chunk in chunks)].to("cpu", torch.float16)


class AnswerRecorder:
    """Keeps the hidden states of a runner by prompt while an engine generates. No part of a prompt may come from the prefix
    cache."""

    def __init__(self) -> None:
        self._states: dict[int, list[Tensor]] = {}
        """By row, of the one that has it."""
        self._prompts: dict[int, list[int]] = {}
        self._kept: dict[tuple[int, ...], list[Tensor]] = {}

    def put(self, chunks: Sequence[Chunk], hidden: Tensor) -> None:
        place, states = 0, hidden.to("cpu", torch.float16)
        for chunk in chunks:
            if chunk.arrival is not None:
                self._leave(chunk.row)
                self._states[chunk.row], self._prompts[chunk.row] = [], []
            self._prompts[chunk.row].extend(chunk.token_ids)
            self._states[chunk.row].append(states[place : place + chunk.length])
            place += chunk.length

    def examples(self, transcripts: Sequence[Transcript]) -> list[Example]:
        """Examples of the texts that were computed without preemption."""
        for row in list(self._states):
            self._leave(row)
        found = []
        for prompt, answer in transcripts:
            kept = self._kept.get(tuple(prompt))
            tokens = (*prompt, *answer)[:-1]  # the last was drawn but never computed
            if kept is not None and sum(map(len, kept)) >= len(tokens):  # steps launched ahead compute beyond an end
                found.append(Example(torch.tensor(tokens), torch.cat(kept)[: len(tokens)], len(prompt)))
        return found

    def _leave(self, row: int) -> None:
        if row in self._states:
            self._kept[tuple(self._prompts.pop(row))] = self._states.pop(row)


def record(
    runner: StepRunner, transcripts: Sequence[Transcript], num_blocks: int, progress: Callable[[int, int], None]
) -> list[Example]:
    """Compute every text in one step, by a runner with a row and blocks for one; each reuses them."""
    recorder = Recorder()
    runner.states = recorder
    examples = []
    for number, (prompt, answer) in enumerate(transcripts):
        tokens = (*prompt, *answer)
        arrival = Arrival(GREEDY, 0, len(tokens), (), "")
        chunk = Chunk(0, 0, len(tokens), tokens, tuple(range(num_blocks)), samples=False, arrival=arrival)
        runner.launch(Batch(number + 1, (chunk,))).result()
        examples.append(Example(torch.tensor(tokens), recorder.hidden.clone(), len(prompt)))
        progress(number + 1, len(transcripts))
    return examples
