"""A real model answers on the GPU with the greedy tokens it answers with on the CPU.

python -m benchmarks.gpu.real MODEL.gguf [packed]

In float32 all answers have to be equal. With `packed` the matrices stay packed and the rest is bfloat16: how many are is told.
"""

import sys

from penstock import LLM, SamplingParams

QUESTIONS = [
    "What is the capital of France?",
    "Write one sentence about rivers.",
    "Count from one to ten.",
    "What do plants need to grow?",
]


def main() -> None:
    params = SamplingParams(max_tokens=40, temperature=0.0)
    is_packed = sys.argv[2:] == ["packed"]
    exact = {"dtype": "float32"}
    answers = {}
    for device, kept in (("cuda", {"weights": "packed"} if is_packed else exact), ("cpu", exact)):
        with LLM(sys.argv[1], device=device, max_context=1024, num_blocks=400, **kept) as llm:
            print(device, f"{llm.loaded.weight_bytes / 2**20:.0f} MiB of weights")
            prompts = [llm.render_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
            answers[device] = [completion.choices[0] for completion in llm.generate(prompts, params)]
    pairs = list(zip(answers["cuda"], answers["cpu"]))
    num_equal = sum(mine.token_ids == theirs.token_ids for mine, theirs in pairs)
    print(f"{num_equal} of {len(pairs)} answers equal; the first: {pairs[0][0].text!r}")
    sys.exit(not is_packed and num_equal < len(pairs))


if __name__ == "__main__":
    main()
