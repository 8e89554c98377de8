"""A small model on the GPU, the same on the CPU, and runners over them."""

import random
from collections.abc import Sequence
from functools import cache

import torch

from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import Runner, RunnerShape
from penstock.runtime.execution.cuda.runner import CudaRunner
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec, Norm, Rope
from tests.runtime.driving import GREEDY, Driver, Text, all_logits

IS_DRY = False
BLOCK_SIZE, NUM_BLOCKS, MAX_SEQUENCES, MAX_CONTEXT = 16, 256, 24, 512
NUM_TOKENS = 20
NEAR = 0.02
"""Scores that differ by less may change places: products are summed up in another order for other sizes."""

EVERY_PARAMETER = [
    GREEDY,
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.6),
    SamplingParams(seed=3, top_k=3),
    SamplingParams(seed=4, top_p=0.5),
    SamplingParams(seed=5, min_p=0.3),
    SamplingParams(seed=6, presence_penalty=1.5),
    SamplingParams(seed=7, frequency_penalty=-1.0),
    SamplingParams(temperature=0.0, repetition_penalty=1.8),
    SamplingParams(seed=9, logit_bias=((5, 40.0), (6, 39.0), (7, -100.0))),
    SamplingParams(seed=10, allowed_token_ids=(3, 50, 51, 52)),
    SamplingParams(seed=11, banned_sequences=((4,), (5, 6), (7, 8, 9))),
    SamplingParams(seed=12, min_tokens=10, stop_token_ids=tuple(range(2500))),
    SamplingParams(seed=13, logprobs=3, prompt_logprobs=2),
    SamplingParams(seed=14, temperature=1.4, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.2, logprobs=0),
]


def spec() -> ModelSpec:
    rope = Rope(64, 10_000.0)
    full, windowed = GQA(4, 2, 64, rope, 0.125), GQA(4, 2, 64, rope, 0.125, window=37)
    layers = tuple(Layer(attention, GatedMLP(512, "silu")) for attention in (windowed, full, full))
    return ModelSpec(
        architecture="llama", hidden_size=256, layers=layers, norm=Norm(), vocab_size=5000, max_context=MAX_CONTEXT
    )


@cache
def cpu_model() -> Decoder:
    model = dummy_model(spec(), torch.device("cpu"), torch.float32)
    assert isinstance(model, Decoder)
    return model


@cache
def model() -> Decoder:
    """The CPU's numbers on the GPU."""
    if IS_DRY:
        return cpu_model()
    made = dummy_model(spec(), torch.device("cuda"), torch.float32)
    assert isinstance(made, Decoder)
    theirs = dict(cpu_model().named_parameters())
    for name, parameter in made.named_parameters():
        parameter.data = theirs[name].data.cuda()
    return made


@cache
def cuda_runner() -> Runner:
    """With its kernels compiled. Sequences may be left in it: others take their rows and blocks."""
    if IS_DRY:
        return ModelRunner(model(), RunnerShape(NUM_BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, MAX_CONTEXT))
    runner = CudaRunner(model(), RunnerShape(NUM_BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, MAX_CONTEXT))
    runner.warm_up(MAX_CONTEXT)
    urgent = runner._warm_up._urgent
    assert urgent is None or urgent.are_ready(wait=True)
    return runner


STEPS = iter(range(0, 1 << 40, 1 << 20))
"""Where the steps of each driver begin: a runner has never seen a later one."""


class GpuDriver(Driver):
    def __init__(self, runner: Runner | None = None) -> None:
        self.start(runner or cuda_runner(), NUM_BLOCKS, MAX_SEQUENCES, BLOCK_SIZE)
        first = next(STEPS)
        self.steps = iter(range(first, first + (1 << 20)))  # type: ignore[assignment]


def prompts(*lengths: int, seed: int = 3) -> list[tuple[int, ...]]:
    source = random.Random(seed)
    return [tuple(source.randrange(5000) for _ in range(length)) for length in lengths]


def finish(texts: Sequence[Text], runner: Runner | None = None) -> list[list[int]]:
    answers = GpuDriver(runner).finish(texts, NUM_TOKENS)
    assert not any(text.failure for text in texts), [text.failure for text in texts]
    return answers


def assert_same(mine: Sequence[list[int]], theirs: Sequence[list[int]], texts: Sequence[Text]) -> None:
    """The same tokens, but where greedy texts stood before two that are as likely; few others may have stood there too."""
    different = [index for index, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1]]
    for index in [index for index in different if texts[index].params == GREEDY]:
        at = next(place for place, pair in enumerate(zip(mine[index], theirs[index])) if pair[0] != pair[1])
        scores = all_logits(cpu_model(), [*texts[index].prompt, *mine[index][:at]])[-1]
        gap = abs(float(scores[mine[index][at]] - scores[theirs[index][at]]))
        assert gap < NEAR, f"text {index} differs at {at}: {mine[index]} {theirs[index]}; scores differ by {gap}"
    assert len(different) <= max(1, len(texts) // 10), f"{len(different)} of {len(texts)} texts differ: {different}"
