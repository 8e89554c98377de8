"""Laws on the GPU: the recorded path, the plain path and the CPU give the same greedy tokens (ties aside)."""

import random

import torch

from penstock import LLM, SamplingParams


def main() -> None:
    numbers = random.Random(1)
    made = [[numbers.randrange(1000, 40000) for _ in range(numbers.randint(3, 300))] for _ in range(24)]
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    settings = {"max_context": 1024, "dtype": "float32", "num_blocks": 2000, "max_batch_tokens": 512}
    fast = LLM("dummy:smollm2-135m", **settings)
    together = [completion.choices[0].token_ids for completion in fast.generate(made, params)]
    alone = [fast.generate([prompt], params)[0].choices[0].token_ids for prompt in made]
    plain = LLM("dummy:smollm2-135m", device="cpu", **settings)
    copied = dict(fast.loaded.network.named_parameters())
    for name, parameter in plain.loaded.network.named_parameters():
        parameter.data = copied[name].data.cpu()
    slow = [completion.choices[0].token_ids for completion in plain.generate(made, params)]
    scored = fast.generate(made, SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, logprobs=1))
    print(
        "equal tokens: together/alone",
        sum(a == b for a, b in zip(together, alone)),
        "together/CPU",
        sum(a == b for a, b in zip(together, slow)),
        "together/host path",
        sum(a == s.choices[0].token_ids for a, s in zip(together, scored)),
        "of",
        len(made),
    )
    warm = SamplingParams(max_tokens=24, temperature=0.8, seed=5, ignore_eos=True)
    drawn = [completion.choices[0].token_ids for completion in fast.generate(made, warm)]
    again = [fast.generate([prompt], warm)[0].choices[0].token_ids for prompt in made]
    top = SamplingParams(max_tokens=24, temperature=0.8, top_p=0.9, top_k=50, seed=5, ignore_eos=True)
    fast.generate(made, top)
    print(
        "sampled together/alone",
        sum(a == b for a, b in zip(drawn, again)),
        "peak GB",
        torch.cuda.max_memory_allocated() / 2**30,
    )


if __name__ == "__main__":
    main()
