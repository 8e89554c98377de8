"""A report says what was measured, advises by it, and is found by a plan of the same model."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.tools.evaluate.kept import keep, kept_reports
from penstock.tools.evaluate.page import page_of
from penstock.tools.evaluate.summary import recommend, summarize

pytestmark = pytest.mark.plain
SHAPE = (1000, 2, 32, 64)


def side(loss: float, size: int, speed: float, *, draw: random.Random) -> dict[str, Any]:
    windows = [[100, -300.0 - loss * 100 + draw.gauss(0, 0.2)] for _ in range(12)]
    total = -sum(each for _, each in windows) / 1200
    return {
        "model": "m",
        "bytes": size,
        "bits_per_weight": 8 * size / 1000,
        "speed": {"W1": speed * 10, "W2": speed, "W3": speed * 2, "peak_bytes": size * 3},
        "text": {"file": "t", "perplexity": 2.7**total, "windows": windows, "kl": loss / 2, "kl_interval": [0, loss],
                 "kl_quantiles": {"0.5": loss / 4, "0.99": loss}, "kl_most": 2 * loss, "same_top_1": 0.9,
                 "same_top_1_interval": [0.8, 1.0]},
        "tasks": {"file": "q", "right": [1, 0] * 20, "accuracy": 0.5, "accuracy_interval": [0.4, 0.6], "questions": 40,
                  "strata": {"topic": {"sums": {"questions": 40, "accuracy": 0.5, "interval": [0.4, 0.6]}}}},
    }  # fmt: skip


def report(loss: float, **made: Any) -> dict[str, Any]:
    draw = random.Random(3)
    layers = [{"layer": number, "mlp.down": 0.1 if number == 1 else 0.01} for number in range(4)]
    card = {"format": "int4", "method": "gptq", "layers": layers, **made}
    return summarize(card, side(0.0, 2000, 10.0, draw=draw), side(loss, 500, 20.0, draw=draw))


@pytest.mark.parametrize(
    ("loss", "advice"),
    [
        (0.0, "use it"),
        (0.003, "use it"),
        (0.03, "use it where memory or speed is short"),
        (0.2, "prefer smaller groups"),
    ],
)
def test_the_advice_follows_what_it_costs(loss: float, advice: str) -> None:
    words = report(loss)["recommendation"]
    assert "4.0 times smaller" in words
    assert "2.0 times the speed" in words
    assert f": {advice}" in words
    assert "layers 1," in words


def test_a_mix_names_the_layers_it_spared() -> None:
    mixture = {"formats": ["int4", "int8"], "matrices": {"layers.0.a": [1, 0.1, 0.0], "layers.2.a": [0, 0.1, 0.0]}}
    assert "layers 0 keep matrices in int8" in report(0.01, mixture=mixture)["recommendation"]


def test_too_little_text_decides_nothing() -> None:
    wide = report(0.0) | {
        "comparisons": [{"measure": "perplexity", "change": 0.01, "interval": [-0.1, 0.2], "verdict": "within chance"}]
    }
    assert "more --tokens" in recommend(wide)


def test_what_was_not_measured_is_said() -> None:
    bare = {"model": "m", "bytes": 100, "bits_per_weight": 16.0}
    assert "was not measured" in summarize({}, bare, {**bare, "bytes": 50})["recommendation"]


def test_the_page_holds_all_it_shows_and_fetches_nothing() -> None:
    page = page_of(report(0.03, method="<script>"))
    assert page.count("<svg") == 3
    assert "<script" not in page
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*(https?:)?//""", page)
    for words in ("peak memory", "W1", "perplexity", "KL divergence", "topic: sums", "mlp.down"):
        assert words in page


def test_a_page_says_units_intervals_and_whose_speed_it_is() -> None:
    draw = random.Random(3)
    before, after = side(0.0, 2000, 10.0, draw=draw), side(0.03, 500, 20.0, draw=draw)
    before["speed"]["runner"], after["speed"]["runner"] = "Decoder", "NativeDecoder"
    found = summarize({"format": "int4"}, before, after)
    page = page_of(found)
    assert "(another runtime)" in found["recommendation"]
    for words in (
        "torch, floats",
        "the native library, packed",
        "50.0% (40 to 60 %)",
        " points",
        "right of 40 questions",
    ):
        assert words in page
    perplexity = re.search(r"<td>perplexity</td><td[^>]*>([+-][0-9.]+) %", page)
    assert perplexity
    assert 2.0 < float(perplexity[1]) < 4.0


def test_kept_reports_are_found_by_shape_the_least_loss_first(tmp_path: Path) -> None:
    keep(report(0.1, method="round"), SHAPE, tmp_path)
    keep(report(0.02), SHAPE, tmp_path)
    (tmp_path / "reports" / "1000-2-32-64" / "damaged.json").write_text("{}")
    found = kept_reports(SHAPE, tmp_path)
    assert [each["method"] for each in found] == ["gptq", "round"]
    assert found[0]["loss"] < found[1]["loss"]
    assert kept_reports((1, 2, 3, 4), tmp_path) == []
    assert json.loads(json.dumps(found)) == found
