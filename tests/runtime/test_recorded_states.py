"""Recorded decode steps of models with latents and states, on any machine: a graph is a step that is computed again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from penstock.runtime.core.limits import Limits
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.drafter import Drafter, Guess, View
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.cuda import forward
from penstock.runtime.execution.cuda.forward import GraphForward, record_steps
from penstock.runtime.execution.cuda.graphs import GraphRecorder, make_graph_parts
from penstock.runtime.execution.eager.launched import Here
from penstock.runtime.execution.eager.runner import ModelRunner, StepRunner
from penstock.runtime.execution.heads.states import StateStore
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.kinds.parts import can_record
from penstock.runtime.layers.step import Step
from penstock.runtime.models.kinds.forgetting import bounded
from tests.runtime.driving import BLOCK_SIZE, tiny_spec
from tests.runtime.heads.test_lossless import DRAFTERS
from tests.runtime.test_engine import requests, serve
from tests.runtime.test_kinds import CONTEXT, computed_alone, groups_of, hybrid, latent

NUM_ROWS = 10


class Rerun:
    """Stands where a graph is: its inputs and outputs stay where they were."""

    def __init__(self, run: Callable[[], Any], made: Any) -> None:
        self._run, self._made = run, made

    def replay(self) -> None:
        for old, new in zip(self._made, self._run()):
            if old is not None and old is not new:
                old.copy_(new)


class RerunRecorder(GraphRecorder):
    def record(self, run: Callable[[], Any], size: int) -> Any:
        run()
        made = run()
        return Rerun(run, made), made


class Buffers:
    def __init__(self, *shape: int) -> None:
        self._buffer = torch.empty(shape, dtype=torch.int64)

    def next(self) -> torch.Tensor:
        return self._buffer


class Listed:
    """The model, for definitions: they read how long contexts are from lists, which a recorded step has not."""

    def __init__(self, model: Decoder) -> None:
        self.spec, self.scores, self._model = model.spec, model.scores, model

    def __call__(self, token_ids: torch.Tensor, step: Step) -> torch.Tensor:
        layout, *others = (
            replace(each, contexts=each.context_lengths.tolist()) for each in (step.layout, *step.others)
        )
        return self._model(token_ids, step._replace(layout=layout, others=others))  # type: ignore[no-any-return]


def recorded_runner(model: Decoder, shape: RunnerShape) -> tuple[StepRunner, dict[int, Any]]:
    """As the CUDA runner is composed, and what it has recorded of decode steps. Mixed steps are computed piece by piece."""
    listed: Any = Listed(model)
    parts = replace(make_graph_parts(model, shape, torch.float32), model=listed, recorder=RerunRecorder())
    steps = record_steps(parts)
    steps.mixed._most_tokens = 0.0
    return StepRunner(parts, GraphForward(parts, steps, steps), sent), steps.decodes._recordings


def sent(tokens: torch.Tensor | None, count: int) -> Here:
    """The next step writes where these are."""
    return Here(None if tokens is None else tokens.clone(), count)


@pytest.mark.parametrize("make", [latent, hybrid])
@pytest.mark.parametrize(("num_blocks", "num_states", "depth"), [(200, 40, 2), (24, 6, 1)])
def test_recorded_decodes_change_no_answer(
    make: Callable[[], Decoder], num_blocks: int, num_states: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks, checkpoints found again, preemption and several choices; padding leaves every state as it was."""
    monkeypatch.setattr(forward, "Pinned", Buffers)
    model = make()
    num_states = num_states if make is hybrid else 0
    shape = RunnerShape(num_blocks, BLOCK_SIZE, NUM_ROWS, CONTEXT, frees=True, num_states=num_states)
    runner, recordings = recorded_runner(model, shape)
    groups = groups_of(model.spec, num_states)
    limits = Limits(num_blocks, BLOCK_SIZE, CONTEXT, 29, NUM_ROWS, 100, 10_000, groups=groups)
    engine = Engine(Scheduler(limits), runner, lambda: 0.0, depth=depth)
    asked = [request for request in requests(9, seed=3) if request.params.prompt_logprobs is None][:6]
    answers = serve(engine, asked)
    engine.scheduler.check()
    assert recordings
    for request in asked:
        for choice in range(request.params.n):
            tokens = [token for delta in answers[request.request_id, choice] for token in delta.token_ids]
            assert tokens == computed_alone(model, request, choice, len(tokens))


class Heard:
    """A drafter, and everything it guessed."""

    def __init__(self, drafter: Drafter) -> None:
        self.name, self.seconds, self.finish = drafter.name, drafter.seconds, drafter.finish
        self._drafter = drafter
        self.guesses: list[tuple[Any, int, tuple[int, ...]]] = []

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        guesses = self._drafter.propose(views, most)
        self.guesses += [(view.key, len(view.tokens), guess.tokens) for view, guess in zip(views, guesses)]
        return guesses


@pytest.mark.parametrize("depth", [1, 2])
def test_heads_guess_by_recorded_steps_what_they_guess_by_others(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded decode steps and steps that check drafts leave the same states for them."""
    monkeypatch.setattr(forward, "Pinned", Buffers)
    model = latent()
    shape = RunnerShape(200, BLOCK_SIZE, NUM_ROWS, CONTEXT, frees=True)
    heard = []
    for runner in (recorded_runner(model, shape)[0], ModelRunner(model, shape)):
        store = runner.states = StateStore(model.spec.hidden_size, torch.device("cpu"))
        drafter = Heard(DRAFTERS["mtp"](model, store))
        limits = Limits(200, BLOCK_SIZE, CONTEXT, 29, NUM_ROWS, 100, 10_000, groups=groups_of(model.spec, 0))
        speculator = Speculator([drafter], length=3)
        engine = Engine(Scheduler(limits), runner, lambda: 0.0, depth=depth, speculator=speculator)
        serve(engine, requests(9, seed=3))
        heard.append(drafter.guesses)
    assert sum(bool(tokens) for *_, tokens in heard[0]) > 20
    assert heard[0] == heard[1]


def test_which_models_can_be_recorded() -> None:
    assert can_record(tiny_spec())
    assert can_record(hybrid().spec)
    assert can_record(latent().spec)
    assert not can_record(bounded(tiny_spec(), "first", 3, 9))
