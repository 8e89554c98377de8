"""`penstock profile step`: where the time of a step goes, part by part, kernel by kernel, beside what the machine reaches."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, configure
from penstock.console.files import check_writable, write_file
from penstock.console.show import print_json, print_table, printable
from penstock.fields import Checked, leaf
from penstock.runtime.core.features import StepTime
from penstock.tools.cost.hardware import Ceilings, NumberFormat
from penstock.tools.cost.parts import work_by_part
from penstock.tools.measure import step_profile
from penstock.tools.measure.step_profile import PartRow, StepProfile, chrome_trace
from penstock.tools.measure.this_machine import NAME, find_hardware

if TYPE_CHECKING:
    from penstock.runtime.execution.step_trace import TracedPart

MOST_KERNELS = 15


@dataclass(frozen=True, slots=True)
class Config(Checked):
    """Show where a step's time goes on this machine.

    A batch is brought to the shape asked for and some of its steps are watched: on a CPU by marks of the native library, on a
    GPU by the driver's record of kernels. Bandwidth and operations a second stand beside what this machine reaches.
    """

    batch: int = leaf(8, 1, 4096)
    """Sequences that generate"""
    context: int = leaf(256, 1, 10**6)
    """Tokens that each has before it"""
    prompt: int = leaf(0, 0, 10**6)
    """Tokens of a prompt that is computed in each step beside them"""
    steps: int = leaf(16, 2, 1000)
    """Steps to watch"""
    json: bool = False
    """Print JSON for machines"""
    chrome_trace: Path | None = None
    """File to write the timeline to, for chrome://tracing or Perfetto"""
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)


def run(config: Config) -> int:
    check_writable(config.chrome_trace)
    profile, spans, data = profiled(config)
    if config.chrome_trace is not None:
        write_file(config.chrome_trace, json.dumps(chrome_trace(spans, data["model"])) + "\n")
    if config.json:
        print_json(data)
    else:
        _print(profile, data)
    return 0


def profiled(config: Config) -> tuple[StepProfile, "list[TracedPart]", dict[str, Any]]:
    """Torch is imported here and not before."""
    from penstock.assembly.engine import load, make_engine, size
    from penstock.runtime.execution.step_trace import watched

    engine_config = EngineConfig(config.model, config.cache, config.scheduler)
    loaded = load(engine_config)
    hardware = find_hardware(NAME, loaded.weight_bytes)
    plain = configure(engine_config, speculate="off")
    steps: list[StepTime] = []
    engine = make_engine(plain, loaded, size(engine_config, loaded), steps.append)
    shape = step_profile.StepShape(config.batch, config.context, config.prompt)
    vocab_size = loaded.spec.vocab_size
    step_profile.drive(engine, shape, vocab_size, config.steps)
    steps.clear()
    with watched(loaded.network, loaded.device.torch_device) as spans:
        step_profile.take(engine, shape, vocab_size, config.steps)
    own = list(steps)
    step_profile.end(engine, shape)
    weight = loaded.weight_bytes / max(loaded.spec.num_parameters, 1)
    kv = {"fp8": 1.0, "int8": 1.0}.get(config.cache.kv, 2.0)
    work = work_by_part(loaded.spec, shape.chunks, weight, kv)
    ceilings = hardware.achievable
    number_format = _format(ceilings, is_packed=weight < 1.5, is_gpu=hardware.kind == "gpu")
    profile = step_profile.profile_of(shape, own, spans, work, ceilings, number_format)
    data = profile.as_data() | {
        "timeline": [list(one) for one in step_profile.timeline(spans, len(own))],
        "model": config.model.model,
        "device": loaded.device.name,
        "reaches": {
            "bytes_per_s": ceilings.bandwidth_bytes_per_s,
            "flops_per_s": ceilings.flops_in(number_format),
            "number_format": number_format,
        },
    }
    return profile, spans, data


def _format(ceilings: Ceilings, *, is_packed: bool, is_gpu: bool) -> NumberFormat:
    """The fastest that such weights are computed in here."""
    wanted: tuple[NumberFormat, ...] = (
        ("int8", "bf16", "fp32") if is_packed and not is_gpu else ("bf16", "fp16", "fp32")
    )
    return next((one for one in wanted if getattr(ceilings.flops, one) > 0.0), "fp32")


def _print(profile: StepProfile, data: dict[str, Any]) -> None:
    reaches = data["reaches"]
    shape = profile.shape
    beside = f" and a prompt of {shape.prompt:,} tokens" if shape.prompt else ""
    print(f"model      {printable(data['model'])} on {printable(data['device'])}")
    print(f"step       {shape.batch} sequences at {shape.context:,} tokens{beside}; {profile.num_steps} steps watched")
    print(
        f"time       {1e3 * profile.step_s:.2f} ms: device {1e3 * profile.device_s:.2f}, host {1e3 * profile.host_s:.2f}; "
        f"roofline {1e3 * profile.floor_s:.2f}"
    )
    tera = f"{reaches['flops_per_s'] / 1e12:,.2f} TFLOP/s in {reaches['number_format']}"
    limits = f"{reaches['bytes_per_s'] / 1e9:,.0f} GB/s, {tera}"
    print(f"reached    {100 * profile.mbu:.0f} % of bandwidth, {100 * profile.mfu:.0f} % of operations ({limits})\n")
    print_table(
        ("part", "ms", "share", "launches", "GB/s", "TFLOP/s", "roofline, ms"), [_row(one) for one in profile.parts]
    )
    if len(profile.kernels) > len(profile.parts):
        print()
        rows = [(printable(one.name[:72]), one.kind, *_row(one)[1:4]) for one in profile.kernels[:MOST_KERNELS]]
        print_table(("kernel", "part", "ms", "share", "launches"), rows)


def _row(one: PartRow) -> tuple[str, ...]:
    rate = "" if one.bytes_per_s is None else f"{one.bytes_per_s / 1e9:,.1f}"
    flops = "" if one.flops_per_s is None else f"{one.flops_per_s / 1e12:,.3f}"
    floor = "" if one.floor_s is None else f"{1e3 * one.floor_s:.3f}"
    return one.name, f"{1e3 * one.seconds:.3f}", f"{100 * one.share:.1f} %", f"{one.num_launches:g}", rate, flops, floor
