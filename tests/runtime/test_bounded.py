"""Attention that forgets: exact while nothing is forgotten, the same however a text is cut, and of one size for ever."""

from dataclasses import replace

import pytest
import torch

from penstock.config import bound_of
from penstock.errors import ConfigError
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.kinds.bounded import PIECE, Bounded
from penstock.runtime.models.kinds.forgetting import bounded
from tests.runtime.driving import tiny_model, tiny_spec
from tests.runtime.test_engine import serve
from tests.runtime.test_kinds import CONTEXT, computed_alone, engine_of

KEPT = {"streaming": ("first", 3, 9), "h2o": ("heaviest", 6, 6)}


def forgetting(name: str, num_recent: int | None = None) -> Decoder:
    """The numbers of the tiny model, in layers that forget."""
    keeps, num_kept, recent = KEPT[name]
    plain = tiny_model()
    spec = bounded(plain.spec, keeps, num_kept, num_recent or recent)  # type: ignore[arg-type]
    model = dummy_model(spec, torch.device("cpu"), torch.float32)
    assert isinstance(model, Decoder)
    model.load_state_dict(plain.state_dict())
    return model


def asked(max_tokens: int = 50) -> list[Request]:
    """Longer than what is kept, beginning alike, one with three choices."""
    stem = tuple(range(40))
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    prompts = [(*stem, *range(number, number + 7 * number)) for number in range(5)]
    return [
        Request(request_id=number, prompt=prompt, params=replace(params, n=3 if number == 3 else 1))
        for number, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize(("max_batch_tokens", "num_states"), [(13, 40), (100, 6)])
def test_answers_do_not_depend_on_chunks_prefixes_and_company(
    name: str, max_batch_tokens: int, num_states: int
) -> None:
    model = forgetting(name)
    engine = engine_of(model, 400, max_batch_tokens, 1, num_states)
    answers = serve(engine, asked())
    engine.scheduler.check()
    for request in asked():
        for choice in range(request.params.n):
            tokens = [token for delta in answers[request.request_id, choice] for token in delta.token_ids]
            assert tokens == computed_alone(model, request, choice, len(tokens))


@pytest.mark.parametrize("name", KEPT)
def test_nothing_is_lost_while_nothing_is_forgotten(name: str) -> None:
    model, plain = forgetting(name, num_recent=CONTEXT), tiny_model()
    for request in asked():
        request = replace(request, params=replace(request.params, n=1))
        mine, theirs = (
            serve(engine_of(each, 400, 64, 1, count), [request]) for each, count in ((model, 8), (plain, 0))
        )
        assert [d.token_ids for d in mine[request.request_id, 0]] == [
            d.token_ids for d in theirs[request.request_id, 0]
        ]


def test_a_state_has_one_size_whatever_the_context() -> None:
    spec = bounded(tiny_spec(), "first", 3, 9, context=1 << 20)
    assert spec.max_context == 1 << 20
    (group,) = [group for group in spec.cache_groups if group.kind == "state"]
    assert group.values_in_sight(100) == group.values_in_sight(1 << 20) == group.values_per_sequence
    parts = [layer.attention for layer in spec.layers if isinstance(layer.attention, Bounded)]
    assert {part.capacity for part in parts} == {3 + 9 + PIECE}


@pytest.mark.parametrize(
    "asked", ["", "streaming:", "h2o:5", "streaming:4+0", "streaming:-1+5", "window", "h2o:9+9999999"]
)
def test_what_is_not_known_is_refused(asked: str) -> None:
    with pytest.raises(ConfigError, match="--long-context is"):
        bound_of(asked)


def test_models_without_full_attention_are_refused() -> None:
    layer = tiny_spec().layers[0]
    windowed = replace(tiny_spec(), layers=(replace(layer, attention=replace(layer.attention, window=9)),))
    for spec in (windowed, replace(tiny_spec(), learned_positions=64)):
        with pytest.raises(ConfigError, match="--long-context is for layers that see all"):
            bounded(spec, "first", 4, 60)
    sunk = replace(tiny_spec(), layers=(replace(layer, attention=replace(layer.attention, window=None, sinks=True)),))
    with pytest.raises(ConfigError, match="learned sinks"):
        bounded(sunk, "first", 4, 60)
