"""What the machine's own measured rates allow: each workload of the suite, simulated with nothing but bytes over the read rate
or operations over the product rate, whichever is longer, part by part. No launch, no host, no imperfect kernel.

Rates are those of the record's own run, before the chip is hot: under load products are slower (see docs/measurements/gpu.md).
"""

import random
from collections.abc import Callable

from penstock.config import configure
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.models import catalog
from penstock.runtime.sizing import Memory, size_engine
from penstock.tools.cost.hardware import Ceilings, Flops
from penstock.tools.cost.precision import Precision
from penstock.tools.cost.roofline import NO_OVERHEAD, Roofline
from penstock.tools.sim.simulation import Fleet, simulate
from penstock.tools.workload.workload import Workload

CHUNK = 8192


class Machine:
    def __init__(self, model: str, rates: dict[str, float], *, is_fp8: bool) -> None:
        spec = catalog.find(model)
        width = 1.0 if is_fp8 else 2.0
        ceilings = Ceilings(
            rates["read_tb_s"] * 1e12, Flops(bf16=rates["bf16_tflops"] * 1e12, fp8=rates["fp8_tflops"] * 1e12)
        )
        cost = Roofline(spec, ceilings, Precision(width, width, "fp8" if is_fp8 else "bf16"), NO_OVERHEAD)
        config = configure(
            model=f"dummy:{model}", max_batch_tokens=CHUNK, max_sequences=256, max_context=4096, prefix_caching=False
        )
        memory = Memory(free_bytes=140 * 2**30, weight_bytes=int(spec.num_parameters * width))
        self.fleet = Fleet(config, size_engine(config, spec, memory), cost)

    def seconds(self, ins: list[int], outs: list[int]) -> float:
        """All at once, to the last token of the last one."""
        requests = [
            Request(
                request_id=number,
                prompt=(7,) * length,
                params=SamplingParams(max_tokens=out, ignore_eos=True),
            )
            for number, (length, out) in enumerate(zip(ins, outs))
        ]
        return simulate(self.fleet, Workload(tuple(requests))).summary.duration_s

    def step_ms(self, count: int, length: int, out: int) -> float:
        both = [self.seconds([length] * count, [each] * count) for each in (1, out)]
        return (both[1] - both[0]) / (out - 1) * 1e3

    def random_s(self) -> float:
        numbers = random.Random(0)
        ins, outs = ([numbers.randint(100, 1024) for _ in range(256)] for _ in range(2))
        return self.seconds(ins, outs)


FLOORS: dict[str, Callable[[Machine], float]] = {
    "step_ms_1": lambda machine: machine.step_ms(1, 128, 256),
    "step_ms_8": lambda machine: machine.step_ms(8, 128, 128),
    "step_ms_32": lambda machine: machine.step_ms(32, 128, 128),
    "step_ms_128": lambda machine: machine.step_ms(128, 128, 128),
    "256x(512+128)_s": lambda machine: machine.seconds([512] * 256, [128] * 256),
    "256_random_s": Machine.random_s,
    "prefill_4000_ms": lambda machine: machine.seconds([4000], [1]) * 1e3,
    "prefill_4000_rested_ms": lambda machine: machine.seconds([4000], [1]) * 1e3,
}
