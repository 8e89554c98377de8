"""Runners of several ranks: the first is told what to compute and tells the others, who compute the same step.

Draws are deterministic, and what is drawn from is the same to the bit on every rank that draws: nobody asks what another drew.
Only the first stage of a pipeline, which draws nothing, is told.

A step that fails on one rank leaves the others in the middle of it. None can go on: whoever runs the engine starts all anew.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from penstock.errors import RankLostError
from penstock.runtime.core.batch import Batch, StepOutput, joined
from penstock.runtime.core.runner import Masks, Runner, Ticket
from penstock.runtime.execution.eager.forward import Forward, RunnerParts
from penstock.runtime.execution.eager.prompt import wants_prompt_logprobs
from penstock.runtime.execution.eager.runner import StepRunner
from penstock.runtime.execution.parallel.adapters import FollowingAdapters
from penstock.runtime.execution.parallel.frames import Announcement, FilledMasks, decode, encode
from penstock.runtime.execution.parallel.micro import micro_batches
from penstock.runtime.execution.parallel.world import World

DEPTH = 2
"""Steps under way at once, at most."""


class LeadingRunner:
    """The first rank's: implements the engine's `Runner` for all of them.

    Masks are filled here for all ranks. They follow from the tokens of every step before, so a step that draws under some is
    announced when it is to draw, and before any other.
    """

    def __init__(self, runner: Runner, world: World, vocab_size: int) -> None:
        self._runner = runner
        self._world = world
        self._mask_bytes = -(-vocab_size // 32) * 4
        self._held: LeadTicket | None = None
        """A step that waits for its masks."""

    @property
    def depth(self) -> int:
        """Steps worth having under way: stages compute one while another is on its way back; a GPU never waits."""
        return DEPTH if self._world.place.ranks.pipeline > 1 or self._world.device.type == "cuda" else 1

    def launch(self, batch: Batch, masks: Masks | None = None) -> Ticket:
        if self._held is not None:
            self._held.draw()
        ticket = LeadTicket(self, batch, masks)
        if masks is None:
            ticket.broadcast()
        else:
            self._held = ticket
        return ticket

    def broadcast(self, batch: Batch, masks: Masks | None) -> Ticket:
        """Have all ranks compute the step, under masks as they are now."""
        self._held = None
        with together():
            filled = None if masks is None else self._filled(masks)
            if self._world.place.ranks.num_ranks > 1:
                self._world.broadcast(encode(Announcement(batch, filled)))
            return self._runner.launch(batch, filled)

    def _filled(self, masks: Masks) -> FilledMasks:
        bits = bytearray(masks.num_rows * self._mask_bytes)
        masks.fill(memoryview(bits))
        return FilledMasks(masks.chunks, masks.num_rows, bytes(bits))


@dataclass(slots=True)
class LeadTicket:
    """A step that all ranks compute. Under masks it is announced once it is to draw."""

    runner: LeadingRunner
    batch: Batch
    masks: Masks | None
    ticket: Ticket | None = None

    def draw(self) -> None:
        with together():
            self.broadcast().draw()

    def result(self) -> StepOutput:
        with together():
            return self.broadcast().result()

    def broadcast(self) -> Ticket:
        if self.ticket is None:
            self.ticket = self.runner.broadcast(self.batch, self.masks)
        return self.ticket


@contextmanager
def together() -> Iterator[None]:
    """Whatever goes wrong in here goes wrong for all ranks."""
    try:
        yield
    except RankLostError:
        raise
    except Exception as error:
        raise RankLostError(f"a step failed on one rank, and so on all: {type(error).__name__}: {error}") from error


def follow(runner: Runner, world: World, adapters: FollowingAdapters | None = None) -> None:
    """Compute what the first rank announces until it has no more."""
    launched: deque[Ticket] = deque()
    while True:
        batch, masks, word = decode(world.recv_broadcast(), Announcement)
        if word is not None and adapters is not None:
            adapters.take(word)
            continue
        if batch is None:
            break
        launched.append(runner.launch(batch, masks))
        launched[-1].draw()
        if len(launched) >= DEPTH:
            launched.popleft().result()
    for ticket in launched:
        ticket.result()


class StageRunner(StepRunner):
    """A stage of a pipeline. Its forward passes take hidden states over and pass them on by themselves.

    first      waits for the tokens its chunks read, computes, and goes on: another stage draws
    between    computes
    last       computes, draws, and tells the first stage
    """

    def __init__(self, parts: RunnerParts, forward: Forward, world: World) -> None:
        super().__init__(parts, forward)
        self._world = world
        self._awaited: deque[MicroStep] = deque()
        """Parts of steps whose tokens have not come back, oldest first."""

    @torch.inference_mode()
    def launch(self, batch: Batch, masks: Masks | None = None) -> Ticket:
        place = self._world.place
        parts = micro_batches(batch, place.ranks.pipeline)
        if place.is_last_stage:
            split = masks.split(parts) if isinstance(masks, FilledMasks) else [None] * len(parts)
            outputs = [self._answered(part, own) for part, own in zip(parts, split, strict=True)]
            return joined(outputs, [len(part.chunks) for part in parts])
        steps = [self._passed(part) for part in parts]
        return StageTicket(self, steps) if place.is_first_stage else StepOutput(((),) * len(batch.chunks))

    def _answered(self, part: Batch, masks: FilledMasks | None) -> StepOutput:
        output = super().launch(part, masks).result()
        self._world.send_reply(encode(output))
        return output

    def _passed(self, part: Batch) -> "MicroStep":
        self._cache.copy(part.copies)
        refusals = self._refusals(part.chunks)
        chunks = [chunk for index, chunk in enumerate(part.chunks) if index not in refusals]
        is_first = self._world.place.is_first_stage
        if chunks:
            if is_first:
                self._catch_up({chunk.row for chunk in chunks})
            self._rows.place(part.step, chunks)
            # As the last stage chooses, who alone draws: hidden states pass in the order and the size of the same step.
            keeps_states = any(wants_prompt_logprobs(chunk, self._rows) for chunk in chunks)
            self._forward(chunks, self._sampler.plan(chunks, {}), keeps_states=keeps_states)
            self._rows.grow(part.step, chunks)
        step = MicroStep(part)
        if is_first:
            self._awaited.append(step)
        return step

    def _catch_up(self, rows: set[int]) -> None:
        """Wait for the tokens that these rows read next."""
        while any(not rows.isdisjoint(step.rows) for step in self._awaited):
            self.recv_output()

    def recv_output(self) -> None:
        """Take in what the oldest part of a step gave."""
        step = self._awaited.popleft()
        output = step.output = decode(self._world.recv_reply(), StepOutput)
        drawn = [
            (chunk.row, chunk.end - chunk.num_drafts + len(tokens) - 1, tokens[-1])
            for chunk, tokens in zip(step.part.chunks, output.tokens, strict=True)
            if tokens
        ]
        self._rows.put(drawn)


@dataclass(slots=True)
class MicroStep:
    """A part of a step on its way through the stages."""

    part: Batch
    output: StepOutput | None = None

    @property
    def rows(self) -> set[int]:
        """Rows that read next what is drawn here."""
        return {chunk.row for chunk in self.part.chunks if chunk.samples}


@dataclass(frozen=True, slots=True)
class StageTicket:
    """A step whose tokens come back from the last stage."""

    runner: StageRunner
    steps: list[MicroStep]

    def draw(self) -> None:
        """The last stage draws."""

    def result(self) -> StepOutput:
        outputs: list[StepOutput] = []
        for step in self.steps:
            while step.output is None:
                self.runner.recv_output()
            outputs.append(step.output)
        return joined(outputs, [len(step.part.chunks) for step in self.steps])
