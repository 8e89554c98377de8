"""Stages whose decode steps are recorded, with recordings that a CPU can replay; and exchanges that are only rehearsed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.runtime.execution.cuda import graphs
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.parallel import recorded
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.ops.layout import BatchLayout
from penstock.runtime.ops.parallel.collective import all_gather_columns, all_reduce, rehearsed
from tests.models.tiny import llama
from tests.runtime.parallel import threads
from tests.runtime.parallel.test_laws import SHAPE, computed, driver, texts
from tests.runtime.parallel.test_split import whole_model

REPLAYS: list[int] = []


class Recording:
    """Runs again what was recorded, and leaves the results where the first ones lie."""

    def __init__(self, run: Callable[[], Any], made: Any) -> None:
        self._run, self._made = run, made

    def replay(self) -> None:
        REPLAYS.append(1)
        for kept, new in zip(tensors(self._made), tensors(self._run()), strict=True):
            if new.data_ptr() != kept.data_ptr():
                kept.copy_(new)


def tensors(made: Any) -> list[torch.Tensor]:
    return [made] if isinstance(made, torch.Tensor) else [part for part in made if part is not None]


class HostRecorder:
    def record(self, run: Callable[[], Any], size: int) -> tuple[Recording, Any]:
        made = run()
        return Recording(run, made), made


class Paged:
    def __init__(self, *shape: int) -> None:
        self._shape = shape

    def next(self) -> torch.Tensor:
        return torch.empty(self._shape, dtype=torch.int64)


def known_layout(**how: Any) -> BatchLayout:
    """What a GPU's kernels find out by themselves, a CPU's are told."""
    return BatchLayout(**how | {"contexts": how["context_lengths"].tolist()})


@pytest.mark.parametrize("ranks", [Ranks(pipeline=2), Ranks(pipeline=3), Ranks(2, 2)], ids=str)
def test_recorded_stages_give_what_one_process_gives(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among prompts in parts, prompts whose tokens are scored, penalties and a preemption."""
    llama(tie_word_embeddings=True).save(tmp_path)
    alone = computed(driver(ModelRunner(whole_model(tmp_path), SHAPE)), texts())
    monkeypatch.setattr(graphs, "GraphRecorder", HostRecorder)
    monkeypatch.setattr(recorded, "Pinned", Paged)
    monkeypatch.setattr(graphs, "BatchLayout", known_layout)
    monkeypatch.setattr(threads, "rank_runner", recorded.make_recorded_stage)
    REPLAYS.clear()
    assert threads.lead(ranks, tmp_path, SHAPE, lambda runner: computed(driver(runner), texts())) == alone
    assert len(REPLAYS) > 10 * ranks.num_ranks


class Deaf:
    """Ranks that must not be asked."""

    index, count = 0, 2

    def all_reduce(self, x: torch.Tensor) -> None:
        raise AssertionError("an exchange that was only rehearsed reached the others")

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("an exchange that was only rehearsed reached the others")


def test_a_rehearsed_exchange_reaches_nobody() -> None:
    x = torch.ones(3, 4)
    with rehearsed():
        assert all_reduce(x, Deaf()) is x
        assert all_gather_columns(x, Deaf(), (4, 2)).shape == (3, 6)
    with pytest.raises(AssertionError):
        all_reduce(x, Deaf())
