"""llama.cpp's own speculation against its plain decoding, by turns, on the questions of `speculation.py`.

    PEER/bin/python benchmarks/cpu/speculation_peer.py MODEL.gguf [--draft-model DRAFT.gguf] [--cases write edit]
        [--turns 3] [--tokens 128] [--threads 2] [--out record.json]

Runs in an environment that has `xllamacpp` alone. Speeds are those that llama.cpp reports of its decoding. Without a draft
model it guesses from n-grams of the prompt.
"""

import argparse
import json
import statistics
import urllib.request
from pathlib import Path
from typing import Any

import xllamacpp

ASK: dict[str, str] = json.loads((Path(__file__).parents[1] / "data" / "speculation-questions.json").read_text())


def serve(model: str, threads: int, kind: str, draft_model: str) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel, params.n_ctx, params.port = 1, 2048, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    if kind:
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
        if draft_model:
            draft = params.speculative.draft
            draft.mparams.path = draft_model
            draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = threads
    return xllamacpp.Server(params)


def rate(server: Any, text: str, num_tokens: int) -> tuple[float, str]:
    body = {
        "prompt": f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n",
        "n_predict": num_tokens,
        "temperature": 0.0,
        "cache_prompt": False,
    }
    request = urllib.request.Request(
        f"{server.listening_address}/completion", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        told = json.loads(answer.read())
    return told["timings"]["predicted_per_second"], told["content"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--draft-model", default="")
    parser.add_argument("--cases", nargs="+", default=["write", "edit"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kind = "DRAFT_SIMPLE" if options.draft_model else "NGRAM_SIMPLE"
    plain = serve(options.model, options.threads, "", "")
    guessing = serve(options.model, options.threads, kind, options.draft_model)
    records = []
    for case in options.cases:
        text, rates, is_same = ASK[case], [], []
        for _ in range(options.turns + 1):
            (one, said), (other, guessed) = (rate(each, text, options.tokens) for each in (plain, guessing))
            rates.append((one, other))
            is_same.append(said == guessed)
        records.append(
            {
                "case": case,
                "kind": kind.lower(),
                "same": all(is_same),
                "plain_tokens_per_s": round(statistics.median(each[0] for each in rates[1:]), 2),
                "tokens_per_s": round(statistics.median(each[1] for each in rates[1:]), 2),
                "ratio": round(statistics.median(b / a for a, b in rates[1:]), 3),
            }
        )
        print(json.dumps(records[-1]), flush=True)
    if options.out:
        about = {"peer": f"llama.cpp, xllamacpp {xllamacpp.__version__}", "threads": options.threads}
        options.out.write_text(json.dumps(about | {"records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
