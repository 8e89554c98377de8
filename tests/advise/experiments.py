"""Guided experiments: what to change of one base, what to look for, and what must hold. Flags are those of `penstock simulate`.

They are those of the cockpit (`web/src/data/experiments.ts`).
"""

from dataclasses import dataclass

BASE = "--model llama-3.1-8b --hardware h100 --rate 10 --num-requests 600 --shared-prefix 2000 --prompts 80 --max-context 8192"
WAIT = "--max-waiting 100000 max-waiting-tokens=1000000000"
"""A queue so long that no request is refused."""
CEILING = f"{WAIT} --rate 0 --policy round-robin"
"""All at once: what a fleet gives at most, its filling and emptying included."""


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    name: str
    flags: str
    """After those of the base; a later flag wins."""

    @property
    def command(self) -> str:
        return f"penstock simulate {merged_flags(BASE, self.flags)}"


@dataclass(frozen=True, slots=True)
class Experiment:
    id: str
    title: str
    runs: tuple[ExperimentRun, ...]
    look_for: str
    holds: str
    """What must be seen, in words; the tests hold it in numbers."""


def merged_flags(base: str, more: str) -> str:
    """Flags of both, those given later instead of earlier ones of the same name."""
    found: dict[str, list[str]] = {}
    for text in (base, more):
        name = ""
        for word in text.split():
            if word.startswith("--") or "=" in word:
                name = word.partition("=")[0]
                found.pop(name, None)
                found[name] = [word]
            else:
                found[name].append(word)
    return " ".join(" ".join(words) for words in found.values())


def _copies(flags: str, count: int) -> str:
    return f"{CEILING} {flags} --num-requests {1000 * count}"


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "baseline",
        "Static batches, no cache",
        (ExperimentRun("static", "batching=static --no-prefix-caching"),),
        "a queue that grows as long as requests come",
        "the queue grows to the end, goodput stays below 5 %",
    ),
    Experiment(
        "continuous",
        "Continuous batching",
        (ExperimentRun("continuous", "--no-prefix-caching"),),
        "slots are taken again the step they are freed",
        "fewer than one waits on average, more than 95 % are good",
    ),
    Experiment(
        "prefix",
        "Prefix cache",
        (ExperimentRun("without", "--no-prefix-caching"), ExperimentRun("with", "")),
        "2,000 of 2,080 prompt tokens are found",
        "TTFT falls more than fivefold",
    ),
    Experiment(
        "speculation",
        "Speculation",
        (ExperimentRun("plain", ""), ExperimentRun("drafts", "--speculate 4 acceptance=.7")),
        "several tokens a step",
        "TPOT falls more than twofold, TTFT stays",
    ),
    Experiment(
        "devices",
        "More devices",
        (
            ExperimentRun("one", _copies("", 1)),
            ExperimentRun("tensor 4", _copies("--tensor 4", 1)),
            ExperimentRun("tensor 8", _copies("--tensor 8", 1)),
            ExperimentRun("replicas 4", _copies("--replicas 4", 4)),
            ExperimentRun("replicas 8", _copies("--replicas 8", 8)),
        ),
        "tensor parallel shortens steps, replicas add them up",
        "tensor: tokens a second grow below linear, TPOT falls; replicas: near linear, TPOT stays",
    ),
    Experiment(
        "breaking-point",
        "The breaking point",
        tuple(
            ExperimentRun(f"rate {rate}", f"{WAIT} --rate {rate} --num-requests {300 * rate}")
            for rate in (15, 18, 20, 22, 25)
        ),
        "latency stays flat, then goes through the roof within 10 % of load",
        "the knee lies between 18 and 25; a fifth of the requests would still show it clean",
    ),
    Experiment(
        "size-wall",
        "Larger models",
        (
            ExperimentRun("bf16 on 8", _copies("--model llama-3.1-70b --tensor 8", 1)),
            ExperimentRun(
                "int8 on 4, twice", _copies("--model llama-3.1-70b --weights int8 --tensor 4 --replicas 2", 2)
            ),
            ExperimentRun("int4 on 1, eight times", _copies("--model llama-3.1-70b --weights int4 --replicas 8", 8)),
        ),
        "the same eight devices, fewer bytes a weight",
        "all far below the 8B; int8 carries more than 1.3 times as much; int4 the most tokens, but none good",
    ),
)
