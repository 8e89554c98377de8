"""One engine's CPU workloads W1-W4 and eight at once, in the environment it is installed in; a line of JSON for each.

    python benchmarks/cpu/peer.py ENGINE MODEL [--only W1 W2]     ENGINE is penstock, llama.cpp, openvino or vllm

`peers.py` runs it in turns. It imports nothing but the engine it measures, so every engine can have an environment of its own.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Prompts = list[list[int]]
LEAST_TOKEN, MOST_TOKEN = 1000, 40_000
"""Ordinary words of every vocabulary here."""


class Penstock:
    def __init__(self, model: str, kv: str = "auto") -> None:
        from penstock import LLM

        self._llm = LLM(model, max_sequences=32, kv=kv, speculate="off")

    def generate(self, prompts: Prompts, num_tokens: int) -> None:
        from penstock import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        made = self._llm.generate(prompts, sampling)
        check(sum(len(each.choices[0].token_ids) for each in made), len(prompts) * num_tokens)


class PenstockInt8(Penstock):
    def __init__(self, model: str) -> None:
        super().__init__(model, kv="int8")


class LlamaCpp:
    """Its Python binding decodes one sequence at a time, so it takes part in W1 and W2 only; `streams.py` has its server."""

    def __init__(self, model: str, *, is_flash: bool = True) -> None:
        from llama_cpp import Llama

        threads = {"n_threads": 2, "n_threads_batch": 2}
        self._llama = Llama(model, n_ctx=2048, n_batch=512, n_ubatch=512, flash_attn=is_flash, verbose=False, **threads)

    def generate(self, prompts: Prompts, num_tokens: int) -> None:
        for prompt in prompts:
            self._llama.reset()
            made = 0
            for _ in self._llama.generate(prompt, temp=0.0, reset=False):
                made += 1
                if made == num_tokens:
                    break
            check(made, num_tokens)


class LlamaCppPlain(LlamaCpp):
    """Without flash attention: faster for one stream, slower for prompts."""

    def __init__(self, model: str) -> None:
        super().__init__(model, is_flash=False)


class Vllm:
    def __init__(self, model: str) -> None:
        from vllm import LLM

        self._llm = LLM(model, dtype="bfloat16", max_num_seqs=32, max_model_len=1024, skip_tokenizer_init=True)

    def generate(self, prompts: Prompts, num_tokens: int) -> None:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        made = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        check(sum(len(each.outputs[0].token_ids) for each in made), len(prompts) * num_tokens)


class OpenVino:
    """Its paged pipeline, weights as the converted model has them."""

    def __init__(self, model: str) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs, scheduler.cache_size, scheduler.enable_prefix_caching = 32, 1, True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU")

    def generate(self, prompts: Prompts, num_tokens: int) -> None:
        import numpy
        import openvino
        import openvino_genai

        sampling = openvino_genai.GenerationConfig()
        sampling.max_new_tokens, sampling.ignore_eos, sampling.do_sample = num_tokens, True, False
        inputs = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in prompts]
        self._pipeline.generate(inputs, [sampling] * len(prompts))


ENGINES: dict[str, Callable[[str], Any]] = {
    "penstock": Penstock,
    "penstock int8 kv": PenstockInt8,
    "llama.cpp": LlamaCpp,
    "llama.cpp plain": LlamaCppPlain,
    "vllm": Vllm,
    "openvino": OpenVino,
}


def check(made: int, asked: int) -> None:
    if made != asked:
        raise SystemExit(f"{made} tokens came where {asked} were asked for")


class Bench:
    def __init__(self, engine: Any, seed: int) -> None:
        self._engine = engine
        self._random = random.Random(seed)

    def ids(self, count: int) -> list[int]:
        return [self._random.randrange(LEAST_TOKEN, MOST_TOKEN) for _ in range(count)]

    def seconds(self, prompts: Prompts, num_tokens: int) -> float:
        begin = time.perf_counter()
        self._engine.generate(prompts, num_tokens)
        return time.perf_counter() - begin

    def w1(self) -> float:
        """Prompt tokens a second."""
        return 512 / self.seconds([self.ids(512)], 1)

    def w2(self) -> float:
        """Tokens a second of one stream, its prompt taken off."""
        prompt = self.ids(64)
        return 127 / (self.seconds([prompt], 128) - self.seconds([self.ids(64)], 1))

    def w3(self) -> float:
        """Output tokens a second, 32 at once."""
        return 64 * 128 / self.seconds([self.ids(256) for _ in range(64)], 128)

    def w4(self) -> float:
        """Seconds for 64 requests that share a prefix."""
        shared = self.ids(512)
        return self.seconds([shared + self.ids(32) for _ in range(64)], 32)

    def eight(self) -> float:
        """Output tokens a second, 8 at once."""
        return 8 * 128 / self.seconds([self.ids(256) for _ in range(8)], 128)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU workloads of one engine")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model")
    parser.add_argument("--only", nargs="*", default=["W1", "W2", "eight", "W4", "W3"])
    args = parser.parse_args()
    bench = Bench(ENGINES[args.engine](args.model), random.SystemRandom().randrange(2**31))
    bench.seconds([bench.ids(16)], 4)
    workloads = {"W1": bench.w1, "W2": bench.w2, "W3": bench.w3, "W4": bench.w4, "eight": bench.eight}
    for name in args.only:
        print(json.dumps({"engine": args.engine, "workload": name, "value": workloads[name]()}), flush=True)
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1e3
    print(json.dumps({"engine": args.engine, "workload": "peak_mb", "value": peak}), flush=True)


if __name__ == "__main__":
    main()
