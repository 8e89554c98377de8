"""Decision trees about money and models: a new model, host or API, tokens a month, halving a bill."""

from penstock.tools.advise.tree import Advice, DecisionTree, asked, in_turn

_API = "penstock calc cost --requests 1e6 --prompt 500 --answer 200 --api-in 1 --api-out 4"
_BREAK_EVEN = (
    "penstock calc cost --hourly 12 --engineer-hours 20 --rate 5 --requests 1e6 --prompt 500 --answer 200 "
    "--api-in 5 --api-out 30"
)

NEW_MODEL = DecisionTree(
    "new-model",
    "A new model, from the first request to a fleet",
    asked(
        "trickle",
        "Is traffic a trickle (some requests a minute)?",
        yes=(
            "Yes",
            Advice("An API", ("A device that idles costs as much as one that works.",), (_API,)),
        ),
        no=(
            "No",
            in_turn(
                (
                    (
                        "pinned",
                        "Are interface, latency targets, price of a request and traffic written down?",
                        Advice(
                            "Pin the four numbers first",
                            ("Every later choice is judged by them: TTFT and TPOT at p95, $ a million tokens, req/s.",),
                            ('penstock plan llama-3.1-8b --rate 10 --slo "ttft<500ms,tpot<50ms"',),
                        ),
                    ),
                    (
                        "smallest",
                        "Is it the smallest model that passes your own evaluation (fine-tuned before a larger one)?",
                        Advice(
                            "Try the next smaller one",
                            ("A model of half the size is twice as fast and twice as many on a device.",),
                            ("penstock show llama-3.2-3b", "penstock eval perplexity TEXT.txt default"),
                        ),
                    ),
                    (
                        "precision",
                        "Is it one precision below 16 bits, with a loss within the noise of the evaluation?",
                        Advice(
                            "One precision down",
                            ("FP8 where the hardware has it; look at the worst task class, not the mean.",),
                            ("penstock advise precision",),
                        ),
                    ),
                    (
                        "cached",
                        "Are prefix cache and, for small batches, speculation on?",
                        Advice(
                            "Prefix cache, then speculation",
                            ("Both are lossless.",),
                            ("penstock simulate --shared-prefix 2000 --speculate 4 --speculate-up-to 16",),
                        ),
                    ),
                    (
                        "fits",
                        "Does it fit one device with the KV of your users?",
                        Advice("Parallel, as it must", ("Smallest layout that fits.",), ("penstock advise layout",)),
                    ),
                ),
                Advice(
                    "Serve it; split prefill from decode only at .1-1 B tokens a day, 100B+ models or long inputs",
                    ("Below that, chunked prompts keep ITL within the target for nothing.",),
                    ("penstock plan llama-3.1-8b --hardware h100 --rate 40 --emit plan.toml",),
                ),
            ),
        ),
    ),
)

VOLUME = DecisionTree(
    "volume",
    "By tokens a month",
    asked(
        "tokens",
        "How many tokens a month?",
        small=("Below 10 million", Advice("An API", ("No device earns its hour at that volume.",), (_API,))),
        medium=(
            "10 to 100 million",
            asked(
                "team",
                "Does latency matter, and is there a team that runs GPUs?",
                yes=(
                    "Yes",
                    Advice(
                        "One machine",
                        ("Your own latency, one thing to run.",),
                        (_BREAK_EVEN, "penstock plan llama-3.1-8b"),
                    ),
                ),
                no=(
                    "No",
                    Advice(
                        "A base of your own, bursts to an API",
                        ("The even part is cheap to host, the peaks are cheap to rent.",),
                        (_BREAK_EVEN,),
                    ),
                ),
            ),
        ),
        large=(
            "More",
            asked(
                "private",
                "Must data stay with you?",
                yes=(
                    "Yes",
                    Advice("Your own site", ("Residency decides.",), ("penstock plan llama-3.1-70b --rate 40",)),
                ),
                no=(
                    "No",
                    Advice(
                        "A cluster",
                        ("Rented by the month, routed, scaled.",),
                        ("penstock plan llama-3.1-70b --rate 40",),
                    ),
                ),
            ),
        ),
    ),
)

HOST_OR_API = DecisionTree(
    "host",
    "Host it or call an API",
    asked(
        "bound",
        "Must data stay with you, or are the weights your own?",
        yes=("Yes", Advice("Host", ("There is no choice to weigh.",), ("penstock plan llama-3.1-8b --rate 10",))),
        no=(
            "No",
            asked(
                "bill",
                "Is the API's bill above $50,000 a month?",
                no=("No", Advice("API", ("People cost more than is saved.",), (_API,))),
                yes=(
                    "Yes",
                    asked(
                        "people",
                        "Are there two people who have run GPUs, and is the load even?",
                        no=("No", Advice("API", ("Bursts idle devices; pagers need two.",), (_API,))),
                        yes=(
                            "Yes",
                            Advice(
                                "Count it: people, network, upgrades, 70 % use, the gap in quality; then host",
                                (
                                    "Hybrid is common: peaks, what is not sensitive, or the hardest tasks go to the API.",
                                ),
                                (_BREAK_EVEN, "penstock plan llama-3.1-8b --rate 40 --api-in 1 --api-out 4"),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
)

BILL = DecisionTree(
    "bill",
    "Half the bill: each step behind an A/B test at 10, 50, 100 %, below 2 % loss in any task class",
    in_turn(
        (
            (
                "routed",
                "Do easy tasks go to a small model?",
                Advice(
                    "Small models for easy tasks",
                    ("Most traffic is easy, and a tenth of the parameters is a tenth of the price.",),
                    ("penstock calc throughput --model llama-3.2-3b --hardware l4 --batch 16 --context 1000",),
                ),
            ),
            (
                "cached",
                "Are answers to equal requests kept, and beginnings of prompts cached?",
                Advice(
                    "Cached answers and prefixes",
                    ("What was computed once need not be paid twice.",),
                    ("penstock calc prefix --prefix 2000 --own 80 --requests 10000 --token-ms .5",),
                ),
            ),
            (
                "shorter",
                "Are prompts and answers as short as they can be?",
                Advice(
                    "Shorter prompts and answers",
                    ("Answers cost several times as much a token; set max_tokens.",),
                    (_API,),
                ),
            ),
        ),
        Advice(
            "Host the largest volume yourself",
            ("The one even, large class of requests pays for a device; the rest stays where it is.",),
            (_BREAK_EVEN,),
        ),
    ),
)

TREES = (NEW_MODEL, VOLUME, HOST_OR_API, BILL)
