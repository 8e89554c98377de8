"""The decision trees by name: where to look first, how to lay a model out, what to buy, what to tune and in which order."""

from collections.abc import Mapping
from difflib import get_close_matches

from penstock.errors import ConfigError
from penstock.tools.advise import buying
from penstock.tools.advise.tree import Advice, DecisionTree, asked, in_turn

URL = "http://127.0.0.1:8000"

_LAYER = DecisionTree(
    "layer",
    "Which layer to look at first",
    asked(
        "slow",
        "When is it slow?",
        alone=(
            "Even a single request on an idle server",
            Advice(
                "The runtime: weights, kernels, number format",
                (
                    "No request waits, so the step itself is slow: compare it with the roofline.",
                    "A decode step is bytes over bandwidth; what lies above that is kernels, launches or the host.",
                ),
                (
                    "penstock bench latency --batch 1",
                    f"penstock doctor {URL} --hardware h100 --model llama-3.1-8b",
                    "penstock calc throughput --model llama-3.1-8b --hardware h100",
                ),
            ),
        ),
        load=(
            "Only with many requests at once",
            Advice(
                "The infrastructure: batching, cache, queue, routing",
                (
                    "Alone it is fast, so requests wait for each other: find the rate at which that begins.",
                    "Then look at what is full: slots, KV blocks, the queue, or one replica of several.",
                ),
                (f"penstock bench {URL} --find-knee", f"penstock doctor {URL}", f"penstock top {URL}"),
            ),
        ),
        user=(
            "The server's own times are short, yet users wait",
            Advice(
                "Network, gateway queue, client",
                (
                    "Compare the server's TTFT with the client's: the difference lies between them.",
                    "Usual causes: buffering proxies, reopened connections, retries, history sent whole each turn.",
                ),
                (f"penstock bench {URL} --concurrency 1 --num-requests 20", f"penstock doctor {URL}"),
            ),
        ),
    ),
)

_THEN = asked(
    "then",
    "It is laid out. What matters next?",
    prefix=(
        "Prompts begin alike",
        Advice(
            "Prefix cache, stable part first",
            ("Equal beginnings are computed once; TTFT falls by their share of the prompt.",),
            ("penstock simulate --shared-prefix 2000 --prompts 80 --rate 10", "penstock calc prefix --token-ms .5"),
        ),
    ),
    latency=(
        "Latency, with few requests at once",
        Advice(
            "Speculation",
            ("A small batch leaves compute idle; checked drafts use it. Give it an off switch for large batches.",),
            (
                "penstock calc speculation --acceptance .7 --drafts 4",
                "penstock simulate --speculate 4 --acceptance .7 --speculate-up-to 16",
            ),
        ),
    ),
    memory=(
        "Memory is tight",
        Advice(
            "KV in 8 bits, then weights",
            ("KV in 8 bits doubles the users at little loss; weights in 8 bits come next and quicken steps too.",),
            (
                "penstock simulate --kv fp8 --weights fp8",
                "penstock calc users --model llama-3.1-8b --hardware l4 --kv fp8",
            ),
        ),
    ),
    nothing=(
        "Nothing: show what it carries",
        Advice(
            "Simulate the load, then launch",
            ("The simulator runs the engine's own scheduler on the layout.",),
            ("penstock plan llama-3.1-8b --hardware h100 --rate 10",),
        ),
    ),
)

_LAYOUT = DecisionTree(
    "layout",
    "How to lay a model over devices",
    asked(
        "fits",
        "Do weights, workspace and the KV of your users fit one device? (penstock calc memory computes it)",
        yes=(
            "Yes",
            asked(
                "rate",
                "Does one device carry the rate you need?",
                yes=("Yes", _THEN),
                no=(
                    "No",
                    Advice(
                        "Replicas: data parallel",
                        ("Copies do not talk to each other, so throughput grows nearly in proportion; TPOT stays.",),
                        (
                            "penstock simulate --replicas 4 --rate 40",
                            "penstock plan llama-3.1-8b --hardware h100 --rate 40",
                        ),
                    ),
                ),
            ),
        ),
        no=(
            "No",
            asked(
                "node",
                "Do they fit all devices of one machine together?",
                yes=(
                    "Yes",
                    asked(
                        "moe",
                        "Is it a mixture of experts?",
                        yes=(
                            "Yes",
                            Advice(
                                "Experts dealt out (EP), attention in tensor groups or replicas",
                                ("A token goes to a few experts, so whole experts travel less than slices of all.",),
                                ("penstock simulate --model qwen3-235b-a22b --weights fp8 --tensor 8 --expert 8",),
                            ),
                        ),
                        no=(
                            "No",
                            Advice(
                                "Tensor parallel inside the machine, the smallest that fits",
                                (
                                    "Two sums a layer need the machine's fast links.",
                                    "More devices than fitting needs buy latency, not throughput: use replicas for that.",
                                ),
                                ("penstock simulate --model llama-3.1-70b --tensor 4", "penstock plan llama-3.1-70b"),
                            ),
                        ),
                    ),
                ),
                no=(
                    "No",
                    Advice(
                        "Tensor parallel in the machine, pipeline across machines",
                        ("Stages pass one vector a token, which a network carries; sums of every layer it does not.",),
                        ("penstock simulate --model llama-3.1-405b --tensor 8 --pipeline 2",),
                    ),
                ),
            ),
        ),
    ),
)

_PRECISION = DecisionTree(
    "precision",
    "Which number format",
    asked(
        "critical",
        "Is quality critical, and does the model fit in 16 bits?",
        yes=(
            "Yes",
            Advice(
                "16 bits",
                ("Nothing to prove, nothing to lose. Measure before you leave it.",),
                ("penstock calc memory --model llama-3.1-8b --weights bf16 --hardware h100",),
            ),
        ),
        no=(
            "No",
            asked(
                "where",
                "Where does it run?",
                fp8=(
                    "A GPU that computes in FP8 (Hopper, Ada, Blackwell)",
                    Advice(
                        "FP8",
                        ("Below half a percent of loss as a rule, half the bytes, twice the operations a second.",),
                        ("penstock serve --weights fp8 --kv fp8", "penstock eval perplexity TEXT.txt default"),
                    ),
                ),
                older=(
                    "An older GPU",
                    asked(
                        "eight",
                        "Does it fit in 8 bits?",
                        yes=(
                            "Yes",
                            Advice(
                                "INT8",
                                ("Up to 1.5 % of loss; half the bytes.",),
                                ("penstock simulate --weights int8 --hardware a100",),
                            ),
                        ),
                        no=(
                            "No",
                            Advice(
                                "INT4: AWQ before GPTQ; nothing below 4 bits",
                                (
                                    "AWQ loses 1-10 %, GPTQ 2-15 %, by task class: look at the worst class.",
                                    "Softmax, first and last layers stay in 16 bits.",
                                ),
                                ("penstock simulate --weights int4 --hardware a100",),
                            ),
                        ),
                    ),
                ),
                cpu=(
                    "A CPU",
                    Advice(
                        "GGUF, 4 to 8 bits, kept packed",
                        ("A CPU is bound by memory: bytes are time. Q4_K and Q8_0 are the usual choices.",),
                        (
                            "penstock serve MODEL.gguf --weights packed",
                            "penstock eval perplexity TEXT.txt MODEL.gguf",
                        ),
                    ),
                ),
            ),
        ),
    ),
)

_SCALING = DecisionTree(
    "scaling",
    "How to scale with the load",
    asked(
        "zero",
        "May users wait for a cold start (machine, weights, engine: a minute or more)?",
        yes=(
            "Yes",
            Advice(
                "Scale to zero, by requests that wait",
                ("Nothing runs without requests; the first request waits for all three parts of a cold start.",),
                ("penstock calc coldstart --model llama-3.1-8b --provision-s 60 --link 1e9",),
            ),
        ),
        no=(
            "No",
            asked(
                "pattern",
                "How does the load change?",
                slow=(
                    "By the hour",
                    Advice(
                        "Scale by pending requests, utilisation beside",
                        (
                            "A queue shows that capacity is missing; a device at 95 % may be fine or overloaded.",
                            "Set least, most, target, and a delay before going down that outlasts a lull.",
                        ),
                        ("penstock simulate --replicas 2 --scale-to 8 --scale-by pending --scale-target 16",),
                    ),
                ),
                bursts=(
                    "In bursts shorter than a cold start",
                    Advice(
                        "Spare replicas and admission control",
                        (
                            "No scaling is quick enough: hold the spare capacity, bound the queue, refuse with Retry-After.",
                        ),
                        (
                            "penstock simulate --burstiness 4 --replicas 3 --max-waiting 64",
                            "penstock serve --max-waiting 64 --max-waiting-tokens 200000",
                        ),
                    ),
                ),
                known=(
                    "By a known schedule",
                    Advice(
                        "Scale ahead of the hour",
                        (
                            "Start replicas a cold start earlier than the load; keep the queue's signal as the net below.",
                        ),
                        ("penstock simulate --replicas 2 --scale-to 8 --cold-start-s 120",),
                    ),
                ),
            ),
        ),
    ),
)

_TUNING = DecisionTree(
    "tuning",
    "What to tune next; one variable at a time, measured before and after",
    in_turn(
        (
            (
                "measured",
                "Do you have p50-p99 of TTFT and TPOT, goodput and the knee of today's set-up?",
                Advice(
                    "Measure first",
                    ("What is not measured before cannot be compared after.",),
                    (f"penstock bench {URL} --find-knee --json before.json",),
                ),
            ),
            (
                "continuous",
                "Is batching continuous and the cache paged?",
                Advice(
                    "Continuous batching over a paged cache",
                    ("The largest single gain: a slot is taken again the step it is freed.",),
                    ("penstock simulate --compare --rate 8",),
                ),
            ),
            (
                "quantized",
                "Are weights in the smallest format your evaluation passes?",
                Advice(
                    "Quantize",
                    ("Decode is bytes over bandwidth: half the bytes is up to twice the speed, and more room for KV.",),
                    ("penstock eval perplexity TEXT.txt default", "penstock simulate --weights fp8"),
                ),
            ),
            (
                "prefix",
                "Is the prefix cache on, with the stable part of prompts first, and are prompts chunked?",
                Advice(
                    "Prefix cache and chunked prompts",
                    ("Beginnings are computed once; long prompts no longer stall streams.",),
                    (f"penstock doctor {URL}", "penstock simulate --shared-prefix 2000 --max-batch-tokens 2048"),
                ),
            ),
            (
                "tensor",
                "Is tensor parallelism the smallest that fits, with replicas for the rest?",
                Advice(
                    "Smallest tensor group, then replicas",
                    ("Sums between devices cost time in every layer; copies cost none.",),
                    ("penstock plan llama-3.1-70b --hardware h100 --max-devices 8",),
                ),
            ),
            (
                "kv",
                "Is KV in 8 bits where the cache is what fills up?",
                Advice(
                    "KV in 8 bits",
                    ("Twice the tokens in the same memory.",),
                    ("penstock serve --kv fp8", "penstock simulate --kv fp8"),
                ),
            ),
            (
                "speculation",
                "Is speculation tried where batches are small?",
                Advice(
                    "Speculation with an off switch",
                    ("It helps TPOT while compute idles; above some batch it only costs.",),
                    ("penstock simulate --speculate 4 --acceptance .7 --speculate-up-to 32",),
                ),
            ),
        ),
        Advice(
            "Split prefill from decode, from about a hundred GPUs on",
            ("It removes the last spikes of ITL; below that size chunking gives most of it for nothing.",),
            ("penstock simulate --prefill-replicas 1 --replicas 1 --rate 4 --prompts 6000 --answers 200",),
        ),
    ),
)

TREES: Mapping[str, DecisionTree] = {
    tree.name: tree for tree in (_LAYER, _LAYOUT, _PRECISION, _TUNING, _SCALING, *buying.TREES)
}


def find(name: str) -> DecisionTree:
    if name in TREES:
        return TREES[name]
    near = get_close_matches(name, TREES, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"unknown tree {name!r}: {hint}choose one of {', '.join(TREES)}")
