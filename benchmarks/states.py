"""A conversation with a hybrid of published shape and random weights: what of its prompts is computed again, turn by turn.

    python -m benchmarks.states [--model dummy:granite-4.0-h-micro] [--turns 10] [--out FILE]

Computed again is what an earlier turn had computed and the cache did not give back. A state is as large after the last turn as
after the first; what attention layers keep grows.
"""

import argparse
import json
import random
import time
from pathlib import Path

from penstock.assembly.engine import load, make_engine, size
from penstock.config import configure
from penstock.runtime.core.request import Request, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dummy:granite-4.0-h-micro")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--first", type=int, default=200, help="tokens of the first question")
    parser.add_argument("--more", type=int, default=60, help="tokens of each other question")
    parser.add_argument("--answer", type=int, default=40)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    most = args.first + args.turns * (args.more + args.answer)
    config = configure(model=args.model, max_context=most, max_sequences=2, speculate="off")
    loaded = load(config)
    sizing = size(config, loaded)
    engine = make_engine(config, loaded, sizing, lambda step: None)
    numbers = random.Random(1)
    said = [numbers.randrange(100, 30_000) for _ in range(args.first)]
    num_known, turns = 0, []
    for turn in range(args.turns):
        params = SamplingParams(temperature=0.0, max_tokens=args.answer, ignore_eos=True)
        num_cached, answer, begun = 0, [], time.perf_counter()
        engine.submit(Request(request_id=turn + 1, prompt=tuple(said), params=params))
        while engine.has_work:
            for delta in engine.step():
                answer.extend(delta.token_ids)
                num_cached += delta.prefix.num_tokens if delta.prefix is not None else 0
        turns.append(
            {
                "prompt_tokens": len(said),
                "cached_tokens": num_cached,
                "again_tokens": num_known - num_cached,
                "seconds": round(time.perf_counter() - begun, 1),
            }
        )
        print(json.dumps(turns[-1]), flush=True)
        num_known = len(said) + len(answer)
        said += answer + [numbers.randrange(100, 30_000) for _ in range(args.more)]
    later = turns[1:]
    record = {
        "model": args.model,
        "again_fraction": round(sum(t["again_tokens"] for t in later) / sum(t["prompt_tokens"] for t in later), 4),
        "state_bytes": sizing.state_bytes,
        "num_states": sizing.groups.num_states,
        "block_bytes": sizing.block_bytes,
        "block_size": sizing.block_size,
        "turns": turns,
    }
    print(json.dumps({key: value for key, value in record.items() if key != "turns"}))
    if args.out is not None:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
