"""Where a step's time goes: an engine is driven to a batch of a given shape and some of its steps are watched part by part.

Each part stands beside what it must read and compute at least, so that its bandwidth and operations a second can be held
against what this machine reaches.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import ConfigError
from penstock.runtime.core.batch import Batch
from penstock.runtime.core.features import StepTime
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.engine import Engine
from penstock.tools.cost.cost import decode_chunks, plain_chunk
from penstock.tools.cost.hardware import Ceilings, NumberFormat
from penstock.tools.cost.parts import NO_WORK, PartWork

if TYPE_CHECKING:  # torch: not needed to say what its parts are
    from penstock.runtime.execution.step_trace import TracedPart

FIRST_ID = 1 << 41
WARM_UP_STEPS = 4
MOST_SPANS = 4000
"""Parts of a step that a timeline shows."""
WHOLE = ("linears", "experts", "attention", "output")
"""Parts that are all of a step's work together."""


class StepShape(NamedTuple):
    """Sequences that generate, each with so long a context, and the tokens of a prompt that is computed beside them."""

    batch: int = 8
    context: int = 256
    prompt: int = 0

    @property
    def chunks(self) -> Batch:
        """Such a step, as far as its cost goes."""
        found = decode_chunks(self.batch, self.context)
        if self.prompt:
            found.append(plain_chunk(self.batch, 0, self.prompt))
        return Batch(0, tuple(found))


@dataclass(frozen=True, slots=True)
class PartRow:
    """A part of a step, or a kernel, in the mean of the steps watched."""

    name: str
    kind: str
    seconds: float
    share: float
    num_launches: float
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    floor_s: float | None = None
    """What it would take at the limits of the machine."""


@dataclass(frozen=True, slots=True)
class StepProfile:
    shape: StepShape
    num_steps: int
    step_s: float
    """Of the loop, median."""
    device_s: float
    host_s: float
    parts: tuple[PartRow, ...]
    """By what they do, the longest first."""
    kernels: tuple[PartRow, ...]
    floor_s: float
    """The whole step's, at the limits of the machine."""
    mfu: float
    """Operations a second of a step over what the machine reaches."""
    mbu: float
    """Likewise bytes read."""

    def as_data(self) -> dict[str, Any]:
        return asdict(self) | {"shape": self.shape._asdict()}


def drive(engine: Engine, shape: StepShape, vocab_size: int, num_steps: int) -> None:
    """Bring the engine to where its next steps have this shape; `num_steps` follow."""
    limits, random = engine.scheduler.limits, Random(0)
    needed = shape.context + num_steps + WARM_UP_STEPS + 8
    if shape.batch > limits.max_sequences or needed > limits.max_context:
        raise ConfigError(
            f"{shape.batch} sequences of {needed} tokens: this engine takes {limits.max_sequences} of {limits.max_context}"
        )
    if shape.batch * needed > limits.num_blocks * limits.block_size:
        raise ConfigError(
            f"{shape.batch} sequences of {needed} tokens do not fit the KV cache; ask for fewer or shorter"
        )
    params = SamplingParams(max_tokens=num_steps + WARM_UP_STEPS + 64, temperature=0.0, ignore_eos=True)
    for number in range(shape.batch):
        prompt = tuple(random.choices(range(vocab_size), k=shape.context))
        engine.submit(Request(request_id=FIRST_ID + number, prompt=prompt, params=params))
    drawn: set[int] = set()
    while len(drawn) < shape.batch:
        drawn |= {delta.request_id for delta in engine.step() if delta.token_ids}
    for _ in range(WARM_UP_STEPS):
        engine.step()


def take(engine: Engine, shape: StepShape, vocab_size: int, num_steps: int) -> None:
    """The steps that are watched."""
    random = Random(1)
    for number in range(num_steps):
        if shape.prompt:
            prompt = tuple(random.choices(range(vocab_size), k=shape.prompt))
            params = SamplingParams(max_tokens=1, temperature=0.0)
            engine.submit(Request(request_id=2 * FIRST_ID + number, prompt=prompt, params=params))
        engine.step()


def end(engine: Engine, shape: StepShape) -> None:
    for number in range(shape.batch):
        engine.cancel(FIRST_ID + number)
    while engine.has_work:
        engine.step()


def profile_of(
    shape: StepShape,
    steps: Sequence[StepTime],
    spans: "Sequence[TracedPart]",
    work: dict[str, PartWork],
    ceilings: Ceilings,
    number_format: NumberFormat,
) -> StepProfile:
    count = max(len(steps), 1)
    each = [(one.device_s + one.host_s, one.device_s, one.host_s) for one in steps] or [(0.0, 0.0, 0.0)]
    step_s, device_s, host_s = map(statistics.median, zip(*each, strict=True))
    if all(one.kind != "output" for one in spans):  # a GPU's output product is a kernel like the others
        work = work | {"linears": work["linears"].plus(work["output"]), "output": NO_WORK}
    rows = _rows({one.kind: one.kind for one in spans}, spans, count, "kind")
    parts = [_beside(row, work.get(row.kind), ceilings, number_format) for row in rows]
    kernels = _rows({one.name: one.kind for one in spans}, spans, count, "name")
    whole = PartWork(*map(sum, zip(*(work.get(name, NO_WORK) for name in WHOLE), strict=True)))
    return StepProfile(
        shape=shape,
        num_steps=len(steps),
        step_s=step_s,
        device_s=device_s,
        host_s=host_s,
        parts=tuple(parts),
        kernels=tuple(kernels),
        floor_s=whole.floor_s(ceilings, number_format),
        mfu=whole.flops / ceilings.flops_in(number_format) / step_s if step_s else 0.0,
        mbu=whole.moved_bytes / ceilings.bandwidth_bytes_per_s / step_s if step_s else 0.0,
    )


def _rows(kinds: dict[str, str], spans: "Sequence[TracedPart]", count: int, by: str) -> list[PartRow]:
    total = sum(one.seconds for one in spans) or 1e-12
    found = []
    for name, kind in kinds.items():
        own = [one.seconds for one in spans if getattr(one, by) == name]
        found.append(PartRow(name, kind, sum(own) / count, sum(own) / total, len(own) / count))
    return sorted(found, key=lambda row: -row.seconds)


def _beside(row: PartRow, work: PartWork | None, ceilings: Ceilings, number_format: NumberFormat) -> PartRow:
    if work is None or not work.moved_bytes or not row.seconds:
        return row
    return replace(
        row,
        bytes_per_s=work.moved_bytes / row.seconds,
        flops_per_s=work.flops / row.seconds,
        floor_s=work.floor_s(ceilings, number_format),
    )


def timeline(spans: "Sequence[TracedPart]", num_steps: int) -> "list[TracedPart]":
    """Parts of one step in order, from its begin: of the steps watched, one in the middle."""
    ordered = sorted(spans, key=lambda one: one.start_s)
    size = len(ordered) // max(num_steps, 1)
    first = size * (num_steps // 2)
    step = ordered[first : first + min(size, MOST_SPANS)]
    return [one._replace(start_s=one.start_s - step[0].start_s) for one in step]


def chrome_trace(spans: "Sequence[TracedPart]", name: str) -> dict[str, Any]:
    """For chrome://tracing and Perfetto: a row of parts, and above it the layers they belong to."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "parts"}},
    ]
    for one in spans:
        facts = {"kind": one.kind} | ({"layer": one.layer} if one.layer >= 0 else {})
        events.append(
            {"ph": "X", "pid": 1, "tid": 1, "name": one.name, "cat": one.kind, "args": facts}
            | {"ts": round(1e6 * one.start_s, 3), "dur": round(1e6 * one.seconds, 3)}
        )
    return {"traceEvents": events, "displayTimeUnit": "ns"}
