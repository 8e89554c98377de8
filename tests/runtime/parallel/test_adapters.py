"""Adapters over several ranks give what they give in one process, as they come and go."""

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.config import AdapterConfig
from penstock.errors import ModelFileError
from penstock.runtime.core.batch import FinishReason
from penstock.runtime.core.runner import Runner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.adapters.gate import AdapterHost
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.adapters import slots as slots_module
from penstock.runtime.execution.adapters.adapt import adapt
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.native.load import load_native
from penstock.runtime.execution.native.runner import NativeRunner
from penstock.runtime.execution.parallel.adapters import FollowingAdapters, LeadingAdapters
from penstock.runtime.execution.parallel.frames import NO_MORE, encode
from penstock.runtime.execution.parallel.native import load_native_part
from penstock.runtime.execution.parallel.part import ModelPart, rank_runner
from penstock.runtime.execution.parallel.runner import LeadingRunner, follow
from penstock.runtime.execution.parallel.world import World
from penstock.runtime.files import ModelFiles
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.models.sharding import shard_model
from tests.adapters.writing import write
from tests.engine.answers import LIMITS, Answers, Clock, drain, make_request
from tests.models.tiny import llama
from tests.runtime.parallel.test_laws import SHAPE
from tests.runtime.parallel.test_native import written
from tests.runtime.parallel.test_split import whole_model
from tests.runtime.parallel.threads import CPU, in_ranks
from tests.runtime.test_native import SPECS

LAYOUTS = [Ranks(2), Ranks(pipeline=2), Ranks(2, 2)]
KINDS: dict[str, dict[str, Any]] = {
    "small": {"rank": 3},
    "large": {"rank": 20},
    "tables": {"embeds": True, "heads": True},
    "dora": {"use_dora": True, "rank": 6},
    "another dora": {"use_dora": True, "rank": 8, "heads": True},
}
CONFIG = AdapterConfig(adapters_dir=".", max_adapters=2)


def answers(runner: Runner, host: AdapterHost | None, paths: list[str], shape: Any = SHAPE) -> Answers:
    """Two slots for all of them: adapters leave and come again."""
    limits = LIMITS._replace(
        num_blocks=shape.num_blocks, block_size=shape.block_size, max_context=shape.max_context,
        max_sequences=shape.max_sequences,
    )  # fmt: skip
    engine = Engine(Scheduler(limits), runner, Clock(), adapters=host)
    for number, path in enumerate(paths):
        engine.submit(make_request(number, (5, 6, number + 1, 9), max_tokens=8, temperature=0.0, adapter=path))
    return drain(engine)


def over_ranks(ranks: Ranks, make: Any, paths: list[str], shape: Any = SHAPE) -> Answers:
    def run(world: World) -> Answers | None:
        part = make(world)
        network = part.join(world)
        runner = rank_runner(network, world, shape, None)
        slots = adapt(runner, network, CONFIG, shape.max_sequences, part.shard)
        assert slots is not None
        if world.place.rank:
            follow(runner, world, FollowingAdapters(slots, world))
            return None
        try:
            leading = LeadingRunner(runner, world, network.spec.vocab_size)
            return answers(leading, LeadingAdapters(slots, world), paths, shape)
        finally:
            world.broadcast(encode(NO_MORE))

    found, *_ = in_ranks(ranks, run)
    assert found is not None
    return found


@pytest.mark.parametrize("ranks", LAYOUTS, ids=str)
def test_ranks_together_adapt_as_one(ranks: Ranks, tmp_path: Path) -> None:
    base = tmp_path / "base"
    llama(tie_word_embeddings=True).save(base)
    files = ModelFiles(str(base), base)
    made = [
        str(write(tmp_path / kind, files.spec, seed, **config)) for seed, (kind, config) in enumerate(KINDS.items())
    ]
    paths = [*made, "", *made, made[0]]
    runner = ModelRunner(whole_model(base), SHAPE)
    alone = answers(runner, adapt(runner, runner._forward._model, CONFIG, SHAPE.max_sequences), paths)  # type: ignore[attr-defined]

    def make(world: World) -> ModelPart:
        part = ModelPart(files.spec, ranks, world.place.rank, CPU, torch.float32)
        part.load(files.model.recipes, files.checkpoint)
        return part

    assert over_ranks(ranks, make, paths).tokens == alone.tokens
    assert alone.tokens[0, 0] != alone.tokens[3, 0]


@pytest.mark.parametrize("ranks", LAYOUTS, ids=str)
def test_native_parts_adapt_as_the_whole(ranks: Ranks, tmp_path: Path) -> None:
    spec = SPECS["plain"]
    recipes, checkpoint = written(spec)
    whole = load_native(spec, recipes, checkpoint, 1)
    if whole is None:
        pytest.skip("the native library is not built")
    made = [str(write(tmp_path / kind, spec, seed, **config)) for seed, (kind, config) in enumerate(KINDS.items())]
    paths = [*made, "", *made]
    shape = SHAPE._replace(block_size=16)
    runner = NativeRunner(whole, shape)
    alone = answers(runner, adapt(runner, whole, CONFIG, shape.max_sequences), paths, shape)

    def make(world: World) -> Any:
        return load_native_part(shard_model(spec, ranks, world.place.rank), recipes, checkpoint, 1)

    together = over_ranks(ranks, make, paths, shape)
    same = [key for key, tokens in alone.tokens.items() if together.tokens[key] == tokens]
    assert len(same) >= len(alone) - 1, (together.tokens, alone.tokens)  # sums of parts are rounded otherwise


def test_what_one_rank_cannot_read_is_refused_for_all_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the other waits for its part of a DoRA's lengths."""
    base = tmp_path / "base"
    llama(tie_word_embeddings=True).save(base)
    files, ranks = ModelFiles(str(base), base), Ranks(2)
    kinds = {"good": {}, "dora": {"use_dora": True}, "again": {"use_dora": True}}
    good, dora, again = (str(write(tmp_path / kind, files.spec, 1, **config)) for kind, config in kinds.items())
    read = slots_module.read_mix

    def failing(path: str, spec: Any, max_rank: int, shard: Any) -> Any:
        if (path, shard.place.rank) in ((dora, 1), (again, 0)):
            raise ModelFileError("nothing there")
        return read(path, spec, max_rank, shard)

    monkeypatch.setattr(slots_module, "read_mix", failing)

    def make(world: World) -> ModelPart:
        part = ModelPart(files.spec, ranks, world.place.rank, CPU, torch.float32)
        part.load(files.model.recipes, files.checkpoint)
        return part

    found = over_ranks(ranks, make, [good, dora, again, str(tmp_path / "nothing"), good])
    assert [answer.reason for answer in found.values()].count(FinishReason.ERROR) == 3
    assert "another rank" in found[1, 0].finish.message
    assert found[0, 0].reason == found[4, 0].reason == FinishReason.LENGTH
