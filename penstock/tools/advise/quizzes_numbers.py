"""Questions with numbers drawn anew: each makes its text, its answer by a calculator, and the answers of usual mistakes."""

from collections.abc import Sequence
from random import Random
from typing import Any

from penstock.tools.calculate.table import calculate, inputs_of

Wrong = tuple[str, str]
"""An answer, and why it is wrong."""
Made = tuple[str, str, str, Sequence[Wrong]]


def _values(name: str, **inputs: Any) -> dict[str, Any]:
    found: dict[str, Any] = calculate(name, inputs_of(name, inputs))["textbook"]
    return found


def bytes_read(rng: Random) -> Made:
    size, count = rng.choice((8, 13, 70)), rng.choice((100, 200, 500))
    each = _values("throughput", parameters=size * 1e9, bandwidth=1e12)["weight_bytes"]
    text = f"A {size}B model in 16 bits writes {count} tokens for one user. How many bytes of weights are read?"
    right = f"{each * count / 1e12:,.1f} TB"
    return (
        text,
        right,
        "Every token is a pass over all weights: tokens x parameters x 2 bytes.",
        (
            (f"{each / 1e9:,.0f} GB", "That is one pass; each token needs its own."),
            (f"{each * count / 2e12:,.1f} TB", "A weight in 16 bits has two bytes."),
            (f"{each * count / 1e15:,.3f} TB", "A thousand times too few: GB are 1e9 bytes."),
        ),
    )


def top_p(rng: Random) -> Made:
    first = rng.choice((0.91, 0.93, 0.95))
    sure = _values("sampling", probabilities=f"{first:.2f},.02,.01", top_p=0.9)["kept"]
    unsure = _values("sampling", probabilities=f"{first - 0.72:.2f},.2,.17,.15,.12,.1", top_p=0.9)["kept"]
    text = "The same top-p of 0.9 is applied where the model is sure and where it is not. How many tokens are kept?"
    return (
        text,
        f"{sure} when sure, {unsure} when not",
        "Top-p keeps mass, so the count follows how spread the mass is.",
        (
            (f"{unsure} both times", "A fixed count is top-k."),
            (f"{unsure} when sure, {sure} when not", "Turned around: little mass a token means more tokens."),
        ),
    )


def ridge(rng: Random) -> Made:
    name = rng.choice(("h100", "a100", "h200"))
    found = _values("roofline", hardware=name)["ridge"]
    text = f"From how many operations a byte on is dense 16-bit work on an {name.upper()} bound by compute?"
    return (
        text,
        f"{found:,.0f}",
        "Peak operations a second over bytes a second.",
        (
            (f"{2 * found:,.0f}", "That takes the figure with sparsity, which dense work does not get."),
            (f"{found / 10:,.0f}", "Ten times too few: compare the datasheet's units."),
            (f"{1 / found:.4f}", "Turned around: bytes an operation."),
        ),
    )


def ridge_batch(rng: Random) -> Made:
    bits = rng.choice((16, 8))
    found = _values("users", parameters=8e9, bits=float(bits), hardware="h100", layers=32, heads=32, head_dim=128)
    right = f"about {found['compute_ceiling']:,.0f}"
    text = f"Which batch makes a decode step with {bits}-bit weights reach the ridge of an H100 in 16-bit arithmetic?"
    return (
        text,
        right,
        "Two operations a weight and sequence, over its bytes: ridge x bytes / 2.",
        (
            ("8", "The step is still bound by memory by a factor of tens."),
            (
                f"about {4 * found['compute_ceiling']:,.0f}",
                "A multiplication and an addition are two operations.",
            ),
            ("1", "With one sequence each byte read gives one or two operations."),
        ),
    )


def tpot(rng: Random) -> Made:
    ttft, each, count = rng.choice((200, 300)), rng.choice((20, 40)), rng.choice((50, 100))
    e2e = ttft + each * (count - 1)
    found = _values("metrics", request=[f"{ttft}:{e2e}:{count}"])["tpot_mean_s"] * 1e3
    text = f"TTFT {ttft} ms, E2E {e2e:,} ms, {count} tokens. What is TPOT?"
    return (
        text,
        f"{found:.1f} ms",
        "(E2E - TTFT) / (tokens - 1): there is one gap less than tokens.",
        (
            (f"{e2e / count:.1f} ms", "TTFT is not part of it."),
            (f"{(e2e - ttft) / count:.1f} ms", "Between n tokens lie n - 1 gaps."),
        ),
    )


def goodput(rng: Random) -> Made:
    bad = rng.choice((10, 20, 40))
    fast, slow = 100, 120
    good = slow * (100 - bad) / 100
    is_first = fast * 0.98 > good
    text = f"A serves {fast} req/s, 98 % within the SLO. B serves {slow} req/s, {100 - bad} % within it. Which is more goodput?"
    right, other = ("A", "B") if is_first else ("B", "A")
    return (
        text,
        right,
        f"A {fast * 0.98:.0f}, B {good:.0f} good requests a second.",
        ((other, "Late answers do not count."), ("neither", "They differ: multiply rate and share.")),
    )


def static(rng: Random) -> Made:
    count, short, long = 7, rng.choice((50, 100)), rng.choice((500, 800))
    found = _values("batching", answers=f"{count}x{short},1x{long}", step_ms=10.0, slots=8)
    text = f"Eight slots, 10 ms a step, answers of {count} x {short} and one of {long}. Tokens a second, batched statically?"
    return (
        text,
        f"{found['static_tokens_per_s']:.0f}",
        "All slots wait for the longest: all tokens over its steps.",
        (
            (f"{found['continuous_tokens_per_s']:.0f}", "That is continuous batching with slots kept full."),
            (f"{found['static_tokens_per_s'] / 8:.0f}", "The eight do run at once."),
        ),
    )


def reserving(rng: Random) -> Made:
    used, context = rng.choice((50, 100, 200)), 2048
    found = _values("kv", layers=40, heads=40, head_dim=128, context=context, used=used)
    text = (
        f"{context:,} places are reserved for a sequence that uses {used}. How much is wasted so, and in blocks of 16?"
    )
    right = f"{100 * found['reserved_waste']:.0f} % and {100 * found['paged_waste']:.0f} %"
    return (
        text,
        right,
        "Reserved: all that is not used. In blocks: less than one block.",
        (
            (f"{100 * used / context:.0f} % and 0 %", "That is the share in use."),
            ("60 % and 4 %", "Those are usual figures of a whole service, not of this sequence."),
        ),
    )


def tau(rng: Random) -> Made:
    alpha, gamma = rng.choice((0.6, 0.7, 0.8)), rng.choice((3, 5))
    tau = _values("speculation", acceptance=alpha, drafts=gamma)["tokens_per_round"]
    text = f"{gamma} drafts, each accepted with {alpha:g} if all before it were. Tokens a round?"
    return (
        text,
        f"{tau:.2f}",
        "(1 - a^(g + 1)) / (1 - a): accepted ones and the one drawn in place of the first rejected.",
        (
            (f"{alpha * gamma:.2f}", "After a rejection the rest of the draft is void."),
            (f"{gamma + 1:.2f}", "Only if all were accepted."),
            (f"{tau - 1:.2f}", "The check itself always gives one more token."),
        ),
    )


def size(rng: Random) -> Made:
    size, bits = rng.choice((7, 13, 70)), rng.choice((4, 8))
    found = _values("throughput", parameters=size * 1e9, bits=float(bits), bandwidth=1e12)["weight_bytes"]
    return (
        f"How large is a {size}B model with {bits} bits a weight?",
        f"{found / 1e9:.1f} GB",
        "Parameters x bits / 8.",
        (
            (f"{size * 2.0:.1f} GB", "That is 16 bits."),
            (f"{size * float(bits):.1f} GB", "Bits are not bytes."),
            (f"{found / 2e9:.1f} GB", "Half of it: check the bits."),
        ),
    )


def replicas(rng: Random) -> Made:
    tensor, data = rng.choice(((4, 2), (2, 4), (8, 2), (4, 3)))
    return (
        f"TP{tensor} x DP{data}: how many devices, and how many copies of the model?",
        f"{tensor * data} devices, {data} copies",
        "A tensor group shares one copy; data parallel makes copies of groups.",
        (
            (f"{tensor * data} devices, {tensor * data} copies", "A device of a group holds a slice, not a copy."),
            (f"{tensor + data} devices, {data} copies", "They multiply."),
            (f"{tensor * data} devices, {tensor} copies", "Turned around."),
        ),
    )
