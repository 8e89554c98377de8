"""Drives a runner by hand: texts in scattered blocks, chunks of any size, several in a step."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from penstock.runtime.core.batch import Arrival, Batch, Chunk, Logprob, StepOutput
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import Runner, RunnerShape
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec, Norm, Rope
from penstock.runtime.ops.layout import BatchLayout

BLOCK_SIZE = 8
GREEDY = SamplingParams(temperature=0.0)


def tiny_spec(vocab_size: int = 96, **changes: object) -> ModelSpec:
    """Two layers, one of which sees a window that is no multiple of a block."""
    rope = Rope(16, 10_000.0)
    full, windowed = GQA(4, 2, 16, rope, 0.25), GQA(4, 2, 16, rope, 0.25, window=11)
    layers = tuple(Layer(attention, GatedMLP(48, "silu")) for attention in (windowed, full))
    spec = {"architecture": "llama", "hidden_size": 32, "layers": layers, "norm": Norm(), "max_context": 256}
    return ModelSpec(vocab_size=vocab_size, **(spec | changes))


def tiny_model(vocab_size: int = 96, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: object) -> Decoder:
    model = dummy_model(tiny_spec(vocab_size, **changes), torch.device("cpu"), dtype, seed)
    assert isinstance(model, Decoder)
    return model


@dataclass
class Text:
    """A sequence to compute. `start` positions are taken to be in the cache already, in `blocks`."""

    prompt: tuple[int, ...]
    params: SamplingParams = GREEDY
    choice: int = 0
    chunk_size: int = 1000
    start: int = 0
    blocks: list[int] = field(default_factory=list)
    drafts: Sequence[int] = ()
    """Guesses, by position in the answer; -1 where there is none."""
    row: int | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    prompt_logprobs: list[Logprob] = field(default_factory=list)
    failure: str | None = None

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.prompt) :]


class Driver:
    def __init__(self, model: Decoder, num_blocks: int = 128, max_sequences: int = 16, max_context: int = 160) -> None:
        self.start(
            ModelRunner(model, RunnerShape(num_blocks, BLOCK_SIZE, max_sequences, max_context)),
            num_blocks,
            max_sequences,
        )

    def start(self, runner: Runner, num_blocks: int, max_sequences: int, block_size: int = BLOCK_SIZE) -> None:
        self.runner = runner
        self.block_size = block_size
        self.free = list(range(num_blocks))
        random.Random(7).shuffle(self.free)
        self.rows = list(range(max_sequences))
        self.steps = count()
        self.copies: list[tuple[int, int]] = []

    def batch(self, texts: Sequence[Text]) -> Batch:
        """The next chunk of each; changes nothing but what blocks and rows are held."""
        copies, self.copies = tuple(self.copies), []
        return Batch(next(self.steps), tuple(self._chunk(text) for text in texts), copies)

    def _chunk(self, text: Text) -> Chunk:
        arrival = None
        known = text.tokens or list(text.prompt)
        if text.row is None:
            text.row = self.rows.pop(0)
            text.tokens = known
            history = tuple(known[: text.start]) if text.params.reads_history else ()
            arrival = Arrival(text.params, text.choice, len(text.prompt), history, "")
        drafts: tuple[int, ...] = ()
        if text.start >= len(text.prompt):
            guesses = text.drafts[len(known) - len(text.prompt) :]
            drafts = tuple(guesses[: guesses.index(-1)] if -1 in guesses else guesses)
            token_ids, end = drafts, text.start + 1 + len(drafts)
        else:
            end = min(len(known), text.start + text.chunk_size)
            token_ids = tuple(known[text.start : end])
        held = len(text.blocks)
        while len(text.blocks) * self.block_size < end:
            text.blocks.append(self.free.pop())
        new_blocks = tuple(text.blocks if arrival else text.blocks[held:])
        samples = end >= len(known)
        return Chunk(text.row, text.start, end - text.start, token_ids, new_blocks, samples, arrival, len(drafts))

    def take(self, texts: Sequence[Text], batch: Batch, output: StepOutput) -> None:
        failures = dict(output.failures)
        for index, (text, chunk) in enumerate(zip(texts, batch.chunks, strict=True)):
            text.failure = failures.get(index)
            text.tokens.extend(output.tokens[index])
            text.start = len(text.tokens) - 1 if output.tokens[index] else chunk.end
            text.logprobs.extend(output.logprobs[index] if output.logprobs else ())
            text.prompt_logprobs.extend(output.prompt_logprobs[index] if output.prompt_logprobs else ())

    def step(self, texts: Sequence[Text]) -> StepOutput:
        batch = self.batch(texts)
        output = self.runner.launch(batch).result()
        self.take(texts, batch, output)
        return output

    def finish(self, texts: Sequence[Text], num_tokens: int) -> list[list[int]]:
        """Steps until each has that many tokens or has failed; those behind catch up while the others go on."""
        while left := [text for text in texts if len(text.answer) < num_tokens and text.failure is None]:
            self.step(left)
        return [text.answer[:num_tokens] for text in texts]

    def leave(self, text: Text) -> None:
        """Give the row and the blocks back, as a preempted sequence does; it keeps its tokens."""
        assert text.row is not None
        self.rows.append(text.row)
        self.free.extend(text.blocks)
        text.row, text.blocks, text.start = None, [], 0


def prompts(*lengths: int, vocab_size: int = 96, seed: int = 3) -> list[tuple[int, ...]]:
    source = random.Random(seed)
    return [tuple(source.randrange(vocab_size) for _ in range(length)) for length in lengths]


def alone(model: Decoder, text: Text, num_tokens: int) -> list[int]:
    return Driver(model).finish([text], num_tokens)[0]


@torch.inference_mode()
def all_logits(model: Decoder, tokens: Sequence[int]) -> torch.Tensor:
    """Scores at every position of a text, computed whole, by the model alone."""
    length, num_blocks = len(tokens), -(-len(tokens) // BLOCK_SIZE)
    layout = BatchLayout(
        positions=torch.arange(length),
        slots=torch.arange(length),
        block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
        query_starts=torch.tensor([0, length], dtype=torch.int32),
        context_lengths=torch.tensor([length], dtype=torch.int32),
        lengths=[length],
        contexts=[length],
    )
    cpu = torch.device("cpu")
    cache = KVCache(model.spec, num_blocks, BLOCK_SIZE, model.cache_dtype, cpu)
    step = Step(layout, Rotations(model.spec, length, cpu).at(layout.positions), cache.layers)
    return model.scores(model(torch.tensor(tokens), step)).float()
