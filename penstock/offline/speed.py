"""How fast a model runs here: prefill, one stream, a full batch, and the memory they take.

Greedy, end-of-text ignored, random token ids from a fresh seed, so that a prefix cache starts cold.
"""

import random
import resource
import statistics
import time
from collections.abc import Callable

from penstock.offline.llm import LLM, Update
from penstock.runtime.core.request import SamplingParams

Figures = dict[str, float]


class SpeedTest:
    """Workloads W1 to W3 on one engine."""

    def __init__(self, llm: LLM, seed: int) -> None:
        self.llm = llm
        self.random = random.Random(seed)

    def ids(self, count: int) -> list[int]:
        return [self.random.randrange(10, self.llm.spec.vocab_size) for _ in range(count)]

    def timed(self, prompts: list[list[int]], num_tokens: int) -> tuple[float, list[list[float]]]:
        """Seconds until all had ended, and until each token of each request came."""
        times: list[list[float]] = [[] for _ in prompts]
        begin = time.monotonic()

        def see(update: Update) -> None:
            times[update.completion.index] += [time.monotonic() - begin] * update.num_tokens

        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        self.llm.generate(prompts, params, on_update=see)
        return time.monotonic() - begin, times

    def w1(self) -> Figures:
        """Prefill of 512 tokens."""
        seconds, _ = self.timed([self.ids(512)], 1)
        return {"tokens_per_s": 512 / seconds}

    def w2(self) -> Figures:
        """128 tokens after 64, one sequence."""
        _, (times,) = self.timed([self.ids(64)], 128)
        return {"tokens_per_s": (len(times) - 1) / (times[-1] - times[0])}

    def w3(self, num_requests: int = 64) -> Figures:
        """Requests of 256 + 128 tokens, as many at once as the engine takes."""
        seconds, _ = self.timed([self.ids(256) for _ in range(num_requests)], 128)
        return {"output_tokens_per_s": num_requests * 128 / seconds}


def measure_speed(model: str, repeats: int) -> dict[str, object]:
    """Medians in tokens a second, and the most memory this process has taken."""
    found: dict[str, object] = {}
    with LLM(model, max_sequences=32, max_context=1024, speculate="off", prefix_caching=False) as llm:
        test = SpeedTest(llm, random.SystemRandom().randrange(2**31))
        test.timed([test.ids(8)], 1)
        parts: dict[str, Callable[[], Figures]] = {"W1": test.w1, "W2": test.w2, "W3": lambda: test.w3(32)}
        for name, part in parts.items():
            runs = 1 if name == "W3" else repeats  # many requests are an average already
            found[name] = round(statistics.median(next(iter(part().values())) for _ in range(runs)), 2)
        found |= {"weight_bytes": llm.loaded.weight_bytes, "runner": type(llm.loaded.network).__name__}
    return found | {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
