"""What of a decode step is not the native library's: Python between one native call and the next, by running sequences.

    python benchmarks/cpu/between.py [--model default] [--running 1 8 32] [--steps 200] [--temperature 0] [--out record.json]

The engine is driven as its process drives it, each turn's news encoded for the wire. Milliseconds a step: `native` is time
inside the library, `between` all else.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from penstock import LLM, SamplingParams
from penstock.runtime.core.request import Request
from penstock.runtime.engine.wire import StepReport, encode
from penstock.runtime.execution.native.decoder import NativeDecoder

clock = time.perf_counter_ns
NATIVE = ("penstock_step", "penstock_rows", "penstock_product")


class Timed:
    """Stands before an object and adds up the time spent in some of its functions."""

    def __init__(self, inner: Any, names: tuple[str, ...]) -> None:
        self._inner = inner
        self.spent_ns = 0
        for name in names:
            setattr(self, name, self._timed(getattr(inner, name)))

    def _timed(self, function: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            begin = clock()
            try:
                return function(*arguments)
            finally:
                self.spent_ns += clock() - begin

        return timed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Loop:
    """An engine's process without the process."""

    def __init__(self, llm: LLM, temperature: float) -> None:
        self.engine = llm.engine
        self._ids = iter(range(1 << 30, 1 << 31))
        self._random = random.Random(0)
        self._vocab_size = llm.spec.vocab_size
        self._temperature = temperature

    def begin(self, num_running: int, num_tokens: int) -> None:
        """Sequences that have their prompts behind them."""
        for _ in range(num_running):
            prompt = tuple(self._random.randrange(10, self._vocab_size) for _ in range(64))
            sampling = SamplingParams(temperature=self._temperature, max_tokens=num_tokens, ignore_eos=True)
            self.engine.submit(Request(request_id=next(self._ids), prompt=prompt, params=sampling))
        for _ in range(8):
            self.turn()

    def turn(self) -> bytes:
        deltas = self.engine.step()
        scheduler = self.engine.scheduler
        step = StepReport(time.monotonic(), deltas, scheduler.load, self.engine.num_steps, scheduler.prompts)
        return encode(step)

    def end(self) -> None:
        while self.engine.has_work:
            self.turn()


def measure(loop: Loop, native: Timed, num_running: int, num_steps: int) -> dict[str, float]:
    loop.begin(num_running, num_steps + 32)
    between, inside = [], []
    last = clock()
    for _ in range(num_steps):
        native.spent_ns = 0
        loop.turn()
        now = clock()
        inside.append(native.spent_ns / 1e6)
        between.append((now - last - native.spent_ns) / 1e6)
        last = now
    loop.end()
    ranked = sorted(between)
    return {
        "native_ms": round(statistics.median(inside), 3),
        "between_p50_ms": round(statistics.median(between), 3),
        "between_mean_ms": round(statistics.fmean(between), 3),
        "between_p99_ms": round(ranked[int(0.99 * (len(ranked) - 1))], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Python between native steps")
    parser.add_argument("--model", default="default")
    parser.add_argument("--running", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    llm = LLM(args.model, max_sequences=max(args.running), speculate="off")
    network = llm.loaded.network
    if not isinstance(network, NativeDecoder):
        raise SystemExit("this model has no native steps")
    native = Timed(network.library._handle, NATIVE)
    network.library._handle = native  # type: ignore[assignment]
    loop = Loop(llm, args.temperature)
    record = {str(count): measure(loop, native, count, args.steps) for count in args.running}
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n")
    for count, figures in record.items():
        print(f"{count:>4} running  " + "  ".join(f"{name} {value:.3f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
