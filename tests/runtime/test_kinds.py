"""Models with several kinds of cache under the real scheduler: every text is the one it would be alone, and memory is freed."""

from dataclasses import dataclass, replace

import pytest

from penstock.errors import ModelFileError
from penstock.runtime.core.kinds.groups import BlockGroup, CacheGroups
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.kinds.cache import Kind
from penstock.runtime.models.kinds.recurrent import GatedDelta, Mamba2, Recurrent, ShortConv
from penstock.runtime.models.spec import MLA, GatedMLP, ModelSpec, MoE, Rope
from tests.runtime.driving import BLOCK_SIZE, Text, alone, tiny_model, tiny_spec
from tests.runtime.test_engine import requests, serve

CONTEXT = 160


def groups_of(spec: ModelSpec, num_states: int = 0) -> CacheGroups:
    first, *others = [BlockGroup(*group) for group in spec.cache_layout().groups]
    return CacheGroups(first, tuple(others), num_states)


def windowed(*windows: int | None) -> Decoder:
    """A tiny model with these windows, layer by layer."""
    layer = tiny_spec().layers[0]
    layers = tuple(replace(layer, attention=replace(layer.attention, window=window)) for window in windows)
    return tiny_model(layers=layers)


def latent() -> Decoder:
    layer = tiny_spec().layers[0]
    attention = MLA(4, 16, 12, 10, Rope(8), 0.2, q_rank=20)
    mixture = MoE(
        8,
        3,
        GatedMLP(16, "silu"),
        True,
        shared=GatedMLP(16, "silu"),
        scores="sigmoid",
        num_groups=4,
        num_active_groups=2,
    )
    return tiny_model(layers=(replace(layer, attention=attention), replace(layer, attention=attention, mlp=mixture)))


def hybrid() -> Decoder:
    layer = tiny_spec().layers[0]
    parts = (Mamba2(4, 8, 6, 2, 4), layer.attention, ShortConv(24, 3), GatedDelta(4, 2, 6, 8, 4))
    return tiny_model(layers=tuple(replace(layer, attention=part) for part in parts))


def engine_of(model: Decoder, num_blocks: int, max_batch_tokens: int, depth: int = 1, num_states: int = 0) -> Engine:
    groups = groups_of(model.spec, num_states)
    limits = Limits(num_blocks, BLOCK_SIZE, CONTEXT, max_batch_tokens, 10, 100, 10_000, groups=groups)
    runner = ModelRunner(model, RunnerShape(num_blocks, BLOCK_SIZE, 10, CONTEXT, frees=True, num_states=num_states))
    return Engine(Scheduler(limits), runner, lambda: 0.0, depth=depth)


@pytest.mark.parametrize(
    ("windows", "depth", "num_blocks", "max_batch_tokens"),
    [((9, None, 9, 9), 2, 64, 13), ((12, 12), 1, 30, 13), ((None, 20, 6), 2, 400, 64)],
)
def test_windows_that_free_change_no_answer(
    windows: tuple[int | None, ...], depth: int, num_blocks: int, max_batch_tokens: int
) -> None:
    model = windowed(*windows)
    engine = engine_of(model, num_blocks, max_batch_tokens, depth)
    check_answers(model, engine, requests(6, seed=depth))


def check_answers(model: Decoder, engine: Engine, asked: list[Request]) -> None:
    answers = serve(engine, asked)
    engine.scheduler.check()
    for request in asked:
        for choice in range(request.params.n):
            tokens = [token for delta in answers[request.request_id, choice] for token in delta.token_ids]
            assert tokens == alone(model, Text(request.prompt, request.params, choice), len(tokens))


def test_latents_under_the_scheduler() -> None:
    """Chunks, prefixes, preemption and several choices."""
    model = latent()
    engine = engine_of(model, 20, 13, 2)
    check_answers(model, engine, requests(6, seed=2))
    assert engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize(("num_blocks", "num_states", "depth"), [(200, 40, 2), (24, 6, 1), (40, 3, 2)])
def test_states_under_the_scheduler(num_blocks: int, num_states: int, depth: int) -> None:
    """Chunks, checkpoints found again, preemption and several choices."""
    model = hybrid()
    engine = engine_of(model, num_blocks, 29, depth, num_states)
    asked = [request for request in requests(9, seed=3) if request.params.prompt_logprobs is None][:6]
    answers = serve(engine, asked)
    engine.scheduler.check()
    for request in asked:
        for choice in range(request.params.n):
            tokens = [token for delta in answers[request.request_id, choice] for token in delta.token_ids]
            assert tokens == computed_alone(model, request, choice, len(tokens))


def computed_alone(model: Decoder, request: Request, choice: int, num_tokens: int) -> list[int]:
    """In an engine of its own, its prompt in one piece, nothing cached."""
    groups = groups_of(model.spec, 8)
    limits = Limits(80, BLOCK_SIZE, CONTEXT, 256, 8, 100, 10_000, prefix_caching=False, groups=groups)
    runner = ModelRunner(model, RunnerShape(80, BLOCK_SIZE, 8, CONTEXT, frees=True, num_states=8))
    answers = serve(Engine(Scheduler(limits), runner, lambda: 0.0), [request], together=True)
    return [token for delta in answers[request.request_id, choice] for token in delta.token_ids][:num_tokens]


def test_a_turn_computes_again_no_more_than_a_block_of_those_before() -> None:
    model = hybrid()
    engine = engine_of(model, 400, 64, 1, 12)
    params = SamplingParams(temperature=0.0, max_tokens=2 * BLOCK_SIZE + 1)
    history: tuple[int, ...] = tuple(range(3 * BLOCK_SIZE))
    known = 0
    for turn in range(4):
        answers = serve(engine, [Request(request_id=turn, prompt=history, params=params)])
        (hit,) = [delta.prefix for delta in answers[turn, 0] if delta.prefix]
        if turn:
            assert known - hit.num_tokens <= BLOCK_SIZE + 1
        history += tuple(token for delta in answers[turn, 0] for token in delta.token_ids)
        known = len(history)
        history += (5, 6, 7)


def test_a_window_holds_no_more_than_it_reads() -> None:
    model = windowed(None, 9, 9, 9)
    engine = engine_of(model, 400, 16)
    engine.submit(Request(request_id=1, prompt=tuple(range(60)), params=SamplingParams(temperature=0.0, max_tokens=90)))
    most = 0
    while engine.has_work:
        engine.step()
        engine.scheduler.check()
        for sequence in engine.scheduler.roster.running:
            (held,) = sequence.holding.others
            most = max(most, len(held.blocks) // 3 - held.first)
    (group,) = groups_of(model.spec).others
    assert group.width == 3
    assert most <= group.most_blocks(CONTEXT, BLOCK_SIZE, 16)


def test_a_prefix_is_found_again_where_its_last_window_is() -> None:
    model = windowed(9, None, 9)
    engine = engine_of(model, 400, 64)
    prompt = tuple(range(50))
    params = SamplingParams(temperature=0.0, max_tokens=20)
    first = serve(engine, [Request(request_id=1, prompt=prompt, params=params)])
    answer = tuple(token for delta in first[1, 0] for token in delta.token_ids)
    again = serve(engine, [Request(request_id=2, prompt=prompt + answer + (5, 6), params=params)])
    (hit,) = [delta.prefix for delta in again[2, 0] if delta.prefix]
    assert hit.num_tokens >= len(prompt + answer) - 2 * BLOCK_SIZE
    tokens = [token for delta in again[2, 0] for token in delta.token_ids]
    assert tokens == alone(model, Text(prompt + answer + (5, 6), params), len(tokens))


@dataclass(frozen=True, slots=True)
class Unheard(Recurrent):
    """A part that nobody computes."""

    num_heads: int = 1
    q_size: int = 8
    state_values: int = 8

    def num_parameters(self, hidden_size: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Encoded(Unheard):
    """Attention over what an encoder made of another text: its keys are as many as that has tokens."""

    state_values: int = 0
    kv_values_per_token: int = 16
    cache_shape: tuple[int, ...] = (2, 8)
    kind: Kind = "cross"


def test_a_decoder_that_reads_an_encoder_is_refused_by_the_layers_name() -> None:
    layer = tiny_spec().layers[1]
    spec = replace(tiny_spec(), layers=(layer, replace(layer, attention=Encoded())))  # type: ignore[arg-type]
    assert {group.kind for group in spec.cache_groups} == {"full", "cross"}
    with pytest.raises(ModelFileError, match=r"layer 1 of llama keeps a cross cache for Encoded, which nothing here"):
        tiny_model(layers=spec.layers)


def test_a_group_that_nobody_computes_is_refused_by_the_layers_name() -> None:
    layer = tiny_spec().layers[1]
    spec = replace(tiny_spec(), layers=(layer, layer, replace(layer, attention=Unheard())))  # type: ignore[arg-type]
    assert [group.kind for group in spec.cache_groups] == ["full", "state"]
    with pytest.raises(ModelFileError, match=r"layer 2 of llama keeps a state cache for Unheard, which nothing here"):
        tiny_model(layers=spec.layers)


def test_a_step_that_failed_leaves_no_trace_in_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ninth step fails after its first layer has written: sequences begin again from their last checkpoints."""
    model = hybrid()
    asked = [request for request in requests(9, seed=4) if request.params.prompt_logprobs is None][:5]
    expected = [computed_alone(model, request, 0, request.params.max_tokens or 0) for request in asked]
    engine = engine_of(model, 200, 29, 1, 40)
    layer, num_calls = model.layers[1], 0
    compute = layer.forward

    def fail_sometimes(*arguments: object) -> object:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 9 == 0:
            raise MemoryError("planted")
        return compute(*arguments)

    monkeypatch.setattr(layer, "forward", fail_sometimes)
    answers = serve(engine, asked)
    engine.scheduler.check()
    for request, tokens in zip(asked, expected):
        said = [token for delta in answers[request.request_id, 0] for token in delta.token_ids]
        assert said == tokens[: len(said)]
        assert len(said) == len(tokens)
