"""A model does not differ from itself; what was saved of a reference bounds the divergence from below."""

from pathlib import Path

import pytest
import torch

from penstock.errors import ConfigError
from penstock.tools.evaluate.divergence import Divergence, KeptRows, LogitsKeeper, SavedLogits, divergences

pytestmark = pytest.mark.torch


def rows(seed: int, count: int = 40, vocabulary: int = 900) -> torch.Tensor:
    return torch.log_softmax(3 * torch.randn((count, vocabulary), generator=torch.Generator().manual_seed(seed)), -1)


def test_nothing_differs_from_itself() -> None:
    own = rows(1)
    assert divergences(own, own).abs().max() == 0
    assert divergences(KeptRows.of(own), own).abs().max() == 0
    found = Divergence()
    found.add(own, own, -5.0, -5.0)
    found.add(own, own, -6.0, -6.0)
    report = found.report()
    assert report["kl"] == 0
    assert report["same_top_1"] == 1
    assert report["perplexity_ratio"] == 1


def test_divergence_is_the_textbook_s_and_what_was_kept_bounds_it() -> None:
    own, other = rows(1), rows(2)
    expected = torch.nn.functional.kl_div(other, own, reduction="none", log_target=True).sum(-1)
    exact = divergences(own, other)
    torch.testing.assert_close(exact.float(), expected, rtol=1e-4, atol=1e-5)
    kept = divergences(KeptRows.of(own, 64), other)
    assert (kept <= exact + 1e-6).all()
    torch.testing.assert_close(divergences(KeptRows.of(own, 900), other), exact, rtol=1e-3, atol=1e-4)


def test_a_saved_reference_is_what_it_was(tmp_path: Path) -> None:
    own, other = rows(1), rows(2)
    keeper = LogitsKeeper()
    keeper.add(list(range(40)), own, own[:, 0])
    keeper.write(tmp_path / "kept.logits")
    kept, logprob = SavedLogits(tmp_path / "kept.logits").window(list(range(40)))
    assert logprob == pytest.approx(float(own[:, 0].double().sum()))
    torch.testing.assert_close(divergences(kept, other), divergences(KeptRows.of(own), other))
    with pytest.raises(ConfigError, match="another text"):
        SavedLogits(tmp_path / "kept.logits").window(list(range(1, 41)))
    (tmp_path / "none").write_text("nothing")
    with pytest.raises(ConfigError, match="--save-logits"):
        SavedLogits(tmp_path / "none")
