"""Laws of watched steps: a native step's marks cover it layer by layer, watching changes no token, kernels have a kind."""

import time

import pytest
import torch

from penstock.runtime.core.features import Features, StepTime
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.execution.native.runner import NativeRunner
from penstock.runtime.execution.step_trace import TracedPart, kind_of, watched
from penstock.runtime.models import catalog
from penstock.tools.cost.hardware import find
from penstock.tools.cost.parts import LINEARS, work_by_part
from penstock.tools.measure.step_profile import StepShape, chrome_trace, profile_of, timeline
from tests.runtime.test_engine import serve
from tests.runtime.test_native import SPECS, twins
from tests.runtime.test_native_runner import make_engine

ASKED = [
    Request(request_id=number, prompt=tuple(range(number + 3)), params=SamplingParams(temperature=0.0, max_tokens=6))
    for number in range(3)
]


@pytest.fixture(scope="module")
def decoder():
    return twins(SPECS["plain"])[1]


def test_marks_cover_the_steps_and_change_no_token(decoder) -> None:
    plain = serve(make_engine(NativeRunner, decoder, 64, 64), ASKED)
    begin_s = time.monotonic()
    with watched(decoder, torch.device("cpu")) as parts:
        assert serve(make_engine(NativeRunner, decoder, 64, 64), ASKED) == plain
    wall_s = time.monotonic() - begin_s
    assert 0.0 < sum(part.seconds for part in parts) <= wall_s
    assert all(part.seconds >= 0.0 for part in parts)
    by_kind = {kind: [part for part in parts if part.kind == kind] for kind in (*LINEARS, "attention")}
    counts = {len(found) for found in by_kind.values()}
    assert len(counts) == 1, "every layer of every step has each of these once"
    assert {part.layer for part in by_kind["qkv"]} == set(range(decoder.spec.num_layers))
    with watched(decoder, torch.device("cpu")) as nothing:
        pass
    assert nothing == []


def test_work_adds_up_to_the_model_and_a_step_stands_beside_its_roofline() -> None:
    spec, h100 = catalog.find("llama-3-8b"), find("h100-sxm").achievable
    shape = StepShape(batch=4, context=1000)
    work = work_by_part(spec, shape.chunks, 2.0, 2.0)
    embedding = spec.vocab_size * spec.hidden_size * (1 if spec.tied_embedding else 2)
    norms = spec.hidden_size * (2 * spec.num_layers + 1)
    assert work["linears"].moved_bytes == 2 * (spec.num_parameters - embedding - norms)
    assert work["attention"].moved_bytes == pytest.approx(4 * 1001 * spec.kv_bytes_per_token(2.0))
    steps = [StepTime(0.0, 0.009, 0.001, True, 0.0, Features(4, 4, 0, 4, 4004, 0, 1001, 0, 0))] * 3
    spans = [TracedPart("gemm", "linears", 0.001 * n, 0.002, -1) for n in range(9)]
    profile = profile_of(shape, steps, spans, work, h100, "bf16")
    (row,) = profile.parts
    assert row.seconds == pytest.approx(0.006)
    read = work["linears"].moved_bytes + work["output"].moved_bytes
    assert row.bytes_per_s == pytest.approx(read / 0.006)
    assert row.floor_s < row.seconds
    assert 0.0 < profile.mfu < profile.mbu < 1.0
    events = chrome_trace(spans, "x")["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 9


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("_small_batch", "linears"),
        ("nvjet_tst_128x8", "linears"),
        ("paged_decode_attention", "attention"),
        ("zzz", "other"),
    ],
)
def test_kernels_have_a_kind(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_a_timeline_is_one_step_from_its_begin() -> None:
    spans = [
        TracedPart(f"part {part}", "linears", 10.0 + step + 0.1 * part, 0.05, part)
        for step in range(4)
        for part in range(3)
    ]
    found = timeline(spans, 4)
    assert [one.name for one in found] == ["part 0", "part 1", "part 2"]
    assert [round(one.start_s, 6) for one in found] == [0.0, 0.1, 0.2]
