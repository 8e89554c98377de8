"""What a step would launch is known before it is launched: recorded steps rehearsed as for a GPU, on any machine."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.execution.cuda.forward import RecordedSteps
from penstock.runtime.execution.cuda.graphs import DecodeGraphs, GraphParts, GraphRecorder
from penstock.runtime.execution.cuda.mixed_graphs import MixedGraphs
from penstock.runtime.execution.cuda.rows import DeviceRows
from penstock.runtime.execution.cuda.verify_graphs import VerifyGraphs
from penstock.runtime.execution.cuda.warm_up import SPECIAL, KernelWarmUp, excerpt
from penstock.runtime.execution.eager.sampler import Sampler
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Rotations
from penstock.runtime.models import catalog
from penstock.runtime.ops.op import OPERATIONS
from penstock.runtime.ops.triton.host.launch import asking
from tests.ops.parity import cases
from tests.ops.triton.test_compile_ahead import hopper

__all__ = ["hopper"]

CPU = torch.device("cpu")
NUM_ROWS, MAX_CONTEXT, BLOCK_SIZE = 9, 256, 16
SPECS = {
    name: replace(catalog.find(name), layers=catalog.find(name).layers[:3], vocab_size=160)
    for name in ("qwen3-0.6b", "smollm2-135m")
}


@pytest.fixture(autouse=True)
def cuda_kernels(monkeypatch: pytest.MonkeyPatch, hopper: None) -> None:
    """A GPU's kernels are chosen for what lies in this machine's memory."""
    assert cases()
    for op in OPERATIONS.values():
        monkeypatch.setitem(op.kernels, "cpu", op.kernels.get("cuda", []))


def parts_of(model: Decoder) -> GraphParts:
    cache = KVCache(model.spec, 21, BLOCK_SIZE, torch.bfloat16, CPU)
    rows = DeviceRows(NUM_ROWS, MAX_CONTEXT, BLOCK_SIZE, model.spec.vocab_size, CPU, idle_block=20)
    rotations = Rotations(model.spec, MAX_CONTEXT, CPU)
    sampler = Sampler(rows.tokens, rows.sampling)
    return GraphParts(rows, cache, rotations, sampler, model, NUM_ROWS - 1, GraphRecorder())


def recorded(parts: GraphParts) -> RecordedSteps:
    return RecordedSteps(DecodeGraphs(parts), VerifyGraphs(parts), MixedGraphs(parts, NUM_ROWS - 1))


def asked_by(model: Decoder, warm_up: Callable[[RecordedSteps], None]) -> list[str]:
    parts = parts_of(model)
    with asking() as variants, torch.inference_mode():
        warm_up(recorded(parts))
    assert not any(part.any() for layer in parts.cache.layers for part in layer)
    assert not parts.rows.tokens.any()
    return [str((variant.function.__name__, variant.signature, variant.constants)) for variant in variants]


@pytest.mark.parametrize("name", SPECS)
def test_one_layer_of_each_kind_asks_for_all_that_the_model_asks_for(name: str) -> None:
    model = dummy_model(SPECS[name], CPU, torch.bfloat16)
    assert isinstance(model, Decoder)

    def warm_up(shown: Decoder) -> Callable[[RecordedSteps], None]:
        def run(steps: RecordedSteps) -> None:
            steps.mixed.warm_up(shown, 4)
            steps.decodes.warm_up(shown, 1)
            steps.decodes.warm_up(shown, 8)
            steps.checks.warm_up(shown, 1, 5)
            steps.checks.warm_up(shown, 8, 1)

        return run

    few, all_of_them = asked_by(model, warm_up(excerpt(model))), asked_by(model, warm_up(model))
    assert sorted(few) == sorted(all_of_them)
    names = {text.split("'")[1] for text in few}
    assert names >= {
        "_norm_rows",
        "_place",
        "decode_tokens",
        "_runs",
        "_gate",
        "_sum_tiles",
        "_pick",
        "_keep",
        "_gather",
        "_one",
        "_small_batch",
    }
    assert len(model.layers) == 3
    assert len(excerpt(model).layers) == 1


def test_draws_that_need_more_are_asked_for_as_well() -> None:
    model = dummy_model(SPECS["smollm2-135m"], CPU, torch.bfloat16)
    assert isinstance(model, Decoder)
    asked = asked_by(excerpt(model), lambda steps: [steps.decodes.warm_up(excerpt(model), 1, each) for each in SPECIAL])
    names = {text.split("'")[1] for text in asked}
    assert names >= {"_note", "_count", "_adjust", "_edit", "_find_peaks", "_count_digits", "_settle", "_pick_kept"}


@pytest.mark.slow
def test_small_steps_go_on_until_kernels_are_there_and_large_ones_wait() -> None:
    model = dummy_model(SPECS["smollm2-135m"], CPU, torch.bfloat16)
    assert isinstance(model, Decoder)
    parts = parts_of(model)

    def warm_up() -> KernelWarmUp:
        return KernelWarmUp(model, (recorded(parts), recorded(parts)), parts.rows, NUM_ROWS - 1)

    small = Batch(0, (Chunk(0, 0, 8, (1,) * 8, (0,), True, None),))
    large = Batch(0, (Chunk(0, 0, 1 << 10, (1,) * (1 << 10), (0,), True, None),))
    first, early = warm_up(), warm_up()
    assert not any(first.has_kernels(small) for _ in range(3))
    assert first.has_kernels(large)
    assert first.has_kernels(small)
    early.begin()
    assert early.has_kernels(large)
