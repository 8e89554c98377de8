"""The quizzes by area. Questions with numbers are made in `quizzes_numbers`."""

from collections.abc import Mapping
from typing import Any

from penstock.errors import ConfigError
from penstock.tools.advise import quizzes_numbers as numbers
from penstock.tools.advise.quiz import QuizItem, QuizQuestion, fixed, question_data
from penstock.tools.advise.quizzes_production import ITEMS as PRODUCTION

_TOKEN_COST = (
    fixed(
        "token cost",
        "cores",
        "One user, batch 1: what would twice as many arithmetic units do to the speed of tokens?",
        "next to nothing",
        "The step waits for weights from memory; the units are idle most of the time.",
        ("twice as fast", "Only if operations were what takes time."),
        ("half as fast", "Idle units do no harm."),
    ),
    QuizItem("bytes-read", "token cost", numbers.bytes_read),
    fixed(
        "token cost",
        "bill",
        "Over the life of a model in service, what usually costs more?",
        "serving it",
        "Training is paid once, every answer is paid again.",
        ("training it", "It is the larger single bill, but only one."),
        ("storing it", "Disks are the least of it."),
    ),
)
_DECODE_LOOP = (
    fixed(
        "decode loop",
        "earlier",
        "Why must keys and values of all earlier tokens be at hand for the next one?",
        "its query is scored against every earlier key",
        "Attention mixes values of all tokens in sight, weighed by those scores.",
        ("the model re-reads the text", "It reads keys and values, not text."),
        ("only the last token matters", "Then there would be no context."),
    ),
    QuizItem("top-p", "decode loop", numbers.top_p),
    fixed(
        "decode loop",
        "stops",
        "Which of these does not end an answer?",
        "a low probability of the chosen token",
        "It ends with an end token, a stop string, the token limit, or a cancel.",
        ("an end-of-sequence token", "It does."),
        ("max_tokens", "It does."),
        ("a stop string across two tokens", "It does: text is matched, not tokens."),
    ),
)
_PHASES = (
    fixed(
        "phases",
        "starves",
        "Why does decode leave compute idle?",
        "each weight read serves as many tokens as there are sequences, and those are few",
        "Intensity is about the batch; the ridge lies in the hundreds.",
        ("its kernels are badly written", "The best kernel still waits for bytes."),
        ("tokens are small", "Weights are what is read."),
    ),
    fixed(
        "phases",
        "sets",
        "What do prefill and decode set?",
        "prefill TTFT, decode TPOT",
        "The prompt must be read before the first token; each further token is a decode step.",
        ("prefill TPOT, decode TTFT", "Turned around."),
        ("both set E2E only", "E2E is made of the two."),
    ),
    fixed(
        "phases",
        "moe",
        "Where does a mixture of experts help more?",
        "decode with few sequences",
        "Few tokens meet few experts, so few bytes are read; many tokens meet all of them.",
        ("decode with very many sequences", "Then nearly all experts are read."),
        ("loading", "All experts are loaded."),
    ),
)
_HARDWARE = (
    QuizItem("ridge", "hardware", numbers.ridge),
    QuizItem("ridge-batch", "hardware", numbers.ridge_batch),
    fixed(
        "hardware",
        "buy",
        "For chat with few users at once, which number of a device matters most?",
        "GB/s of its memory",
        "Decode at small batches is bytes over bandwidth.",
        ("TFLOP/s", "It matters for prompts and large batches."),
        ("GB of its memory, once the model fits", "Room adds users, not speed."),
    ),
)
_METRICS = (
    QuizItem("tpot", "metrics", numbers.tpot),
    fixed(
        "metrics",
        "tail",
        "The mean TTFT is 200 ms, p99 is 8 s. What do users say?",
        "one request in a hundred is unbearable",
        "A mean hides its tail; a page of ten requests meets it one time in ten.",
        ("it is fine: 200 ms", "One in a hundred waits forty times as long."),
        ("all wait 8 s", "99 of 100 do not."),
    ),
    fixed(
        "metrics",
        "blocking",
        "A client that waits for each answer before it asks again measures an overloaded server. What does it miss?",
        "the requests that would have come meanwhile",
        "It slows down with the server: coordinated omission. Latency counts from when a request was due.",
        ("nothing", "It never sends at the rate users would."),
        ("network time", "That is in its clock."),
    ),
    QuizItem("goodput", "metrics", numbers.goodput),
)
_BATCHING = (
    fixed(
        "batching",
        "slot",
        "Under continuous batching, when is a slot taken again after an answer ends?",
        "at the next step",
        "A new batch is formed each step.",
        ("when the whole batch has ended", "That is static batching."),
        ("after the gather time", "That is dynamic batching."),
    ),
    QuizItem("static", "batching", numbers.static),
    fixed(
        "batching",
        "best",
        "Which batch is best?",
        "the largest that still meets the TPOT target",
        "Beyond it, throughput grows and goodput falls.",
        ("the largest that fits memory", "Late tokens count for nothing."),
        ("1", "The quickest, and the dearest."),
    ),
)
_MEMORY = (
    fixed(
        "attention, paging",
        "tiling",
        "What does tiled attention leave equal?",
        "the result",
        "It is exact; only the traffic to memory shrinks.",
        ("the bytes moved", "That is what it saves."),
        ("nothing: it is an approximation", "The running maximum and sum make it exact."),
    ),
    QuizItem("reserving", "attention, paging", numbers.reserving),
    fixed(
        "attention, paging",
        "sharing",
        "Two sequences share blocks of a common beginning. What is saved in decode?",
        "memory, not reads",
        "Each sequence still reads all its keys and values in every step.",
        ("reads, not memory", "Turned around."),
        ("both", "Only kernels made for it read shared blocks once."),
    ),
)
_SPECULATION = (
    QuizItem("tau", "speculation", numbers.tau),
    fixed(
        "speculation",
        "lossless",
        "Why does speculative sampling not change what is sampled?",
        "a draft is kept with min(1, p/q), else one is drawn from what is left of p above q",
        "Together these give exactly p.",
        ("drafts are nearly always right", "It would be exact even if they never were."),
        ("the target checks only greedy tokens", "It works at any temperature."),
    ),
    fixed(
        "speculation",
        "off",
        "When should drafts be switched off?",
        "when the batch fills the compute",
        "Checking drafts needs idle compute.",
        ("when only one user is there", "That is when it helps most."),
        ("when prompts are long", "It does not touch prompts."),
    ),
    fixed(
        "speculation",
        "temperature",
        "What does a higher temperature do to acceptance?",
        "it falls",
        "The target is less sure, so guesses agree less often.",
        ("it rises", "Flatter distributions overlap less at single tokens."),
        ("nothing", "Both distributions change."),
    ),
)
_QUANTIZATION = (
    QuizItem("size", "quantization", numbers.size),
    fixed(
        "quantization",
        "both",
        "Why can both phases gain from FP8?",
        "half the bytes quicken decode, and FP8 arithmetic is twice as fast for prefill",
        "One phase is bound by bytes, the other by operations.",
        ("only decode gains", "Weight-only formats do that; FP8 arithmetic does more."),
        ("only prefill gains", "Bytes halve too."),
    ),
    fixed(
        "quantization",
        "hides",
        "A benchmark falls from 92 to 90 %. What may that hide?",
        "one class of tasks that fell by far more",
        "Look at each class: a mean spreads the damage.",
        ("nothing: 2 % is 2 %", "Means hide classes."),
        ("that it got better", "It fell."),
    ),
    fixed(
        "quantization",
        "risk",
        "From least to most risk?",
        "KV in 8 bits, weights in FP8, weights in INT4, below 4 bits",
        "Each step gives up more than the one before.",
        ("weights in INT4, FP8, KV in 8 bits", "Turned around."),
        ("all alike", "Loss grows steeply below 8 bits."),
    ),
)
_PARALLELISM = (
    QuizItem("replicas", "parallelism", numbers.replicas),
    fixed(
        "parallelism",
        "tp8pp2",
        "Sixteen devices in two machines, one model: why TP8 x PP2 rather than TP16?",
        "sums of every layer stay inside a machine; one vector a token crosses the network",
        "Tensor parallel sums twice a layer; stages pass one vector on.",
        ("it needs less memory", "Both cut the weights into sixteen."),
        ("pipelines have no bubble", "They have; it is the cheaper evil."),
    ),
    fixed(
        "parallelism",
        "sums",
        "How many sums over all devices does a layer need under tensor parallelism?",
        "2",
        "One after attention, one after the MLP.",
        ("1", "Each half of the layer needs one."),
        ("one a head", "Heads are added up on each device first."),
        ("none", "Slices must be put together."),
    ),
)

_ITEMS = (
    *_TOKEN_COST,
    *_DECODE_LOOP,
    *_PHASES,
    *_HARDWARE,
    *_METRICS,
    *_BATCHING,
    *_MEMORY,
    *_SPECULATION,
    *_QUANTIZATION,
    *_PARALLELISM,
    *PRODUCTION,
)
ITEMS: Mapping[str, QuizItem] = {item.id: item for item in _ITEMS}
AREAS: tuple[str, ...] = tuple(dict.fromkeys(item.area for item in _ITEMS))


def questions(area: str, seed: int = 0) -> list[QuizQuestion]:
    if area not in AREAS:
        raise ConfigError(f"unknown area {area!r}: choose one of {', '.join(AREAS)}")
    return [item.question(seed) for item in _ITEMS if item.area == area]


def quizzes_data(seed: int = 0) -> dict[str, Any]:
    """All areas, numbers drawn by the seed."""
    return {area: [question_data(one) for one in questions(area, seed)] for area in AREAS}
