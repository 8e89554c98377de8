"""Laws of the step model that fits itself: it finds the machine's own terms, follows it when it changes, and says its error."""

from random import Random

import pytest

from penstock.metrics.step_model import LEAST_STEPS, OnlineStepModel


def feed(model: OnlineStepModel, count: int, slow: float = 1.0, noise: float = 0.05, seed: int = 0) -> None:
    random = Random(seed)
    for _ in range(count):
        sequences, prompt = random.randint(1, 32), random.choice((0, 0, 0, 100, 700))
        kv = sequences * random.randint(50, 900)
        seconds = slow * (0.01 + 0.0005 * sequences + 0.0001 * prompt + 4e-7 * kv) * random.gauss(1.0, noise)
        model.take(seconds, sequences, prompt, kv)


def test_it_finds_the_terms_and_its_error_is_the_noise() -> None:
    model = OnlineStepModel()
    assert model.errors is None
    feed(model, 800)
    assert model.predict(16, 0, 8000) == pytest.approx(0.01 + 0.008 + 0.0032, rel=0.03)
    assert model.predict(4, 700, 2000) == pytest.approx(0.01 + 0.002 + 0.07 + 0.0008, rel=0.03)
    errors = model.errors
    assert errors is not None
    assert 0.02 < errors.median < 0.06
    assert errors.p90 < 0.15
    assert abs(errors.bias) < 0.02


def test_a_machine_that_becomes_slower_is_followed() -> None:
    model = OnlineStepModel()
    feed(model, 600)
    feed(model, 900, slow=2.5, seed=1)
    assert model.predict(16, 0, 8000) == pytest.approx(2.5 * 0.0212, rel=0.08)
    assert abs(model.errors.bias) < 0.05


def test_one_accident_bends_nothing() -> None:
    model = OnlineStepModel()
    feed(model, 400)
    before = model.predict(16, 0, 8000)
    model.take(30.0, 16, 0, 8000)
    assert model.predict(16, 0, 8000) == pytest.approx(before, rel=0.25)
    model.take(0.0, 1, 0, 1)
    assert model.num_steps == 401
    assert LEAST_STEPS < 400


def test_a_load_that_never_changes_leaves_the_error_the_noise() -> None:
    """One user, or eight, for hours: what a sequence takes cannot be told from what a step takes."""
    for num_sequences in (1, 8):
        model, random = OnlineStepModel(), Random(1)
        for step in range(10_000):
            kv, prompt = num_sequences * (100 + step % 200), 150 * (step % 200 == 0)
            seconds = (0.006 + 0.0004 * num_sequences + 0.0014 * prompt + 6e-6 * kv) * random.gauss(1.0, 0.05)
            model.take(seconds, num_sequences, prompt, kv)
        assert model.errors is not None
        assert model.errors.median < 0.06
        assert abs(model.errors.bias) < 0.02
        assert min(model.seconds.values()) >= 0.0
        assert model.seconds["prompt_token"] == pytest.approx(0.0014, rel=0.2)
