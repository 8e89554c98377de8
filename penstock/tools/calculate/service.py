"""Requests as a service sees them: their times, the queue, batches of unequal answers, who is refused, how a token is drawn."""

import math
from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.fields import Checked, setting
from penstock.metrics.summary import Slo, percentiles
from penstock.metrics.timeline import Outcome, Timeline
from penstock.tools.calculate.sheet import Sheet, positive
from penstock.tools.planner import figures

KV_LIMIT = 0.95


@dataclass(frozen=True)
class MetricsInputs:
    """TPOT, ITL and goodput from the times of requests."""

    request: tuple[str, ...] = setting(())
    """Times of a request in ms and its tokens: TTFT:E2E:TOKENS (200:2200:50)"""
    ttft_ms: float = setting(500.0)
    """Longest time to the first token that counts as good"""
    tpot_ms: float = setting(50.0)
    """Longest mean time between tokens that counts as good"""


def metrics(inputs: MetricsInputs, sheet: Sheet) -> None:
    timelines = [_timeline(text) for text in inputs.request]
    if not timelines:
        raise ConfigError("there is no request to measure; give request=TTFT:E2E:TOKENS, in ms, once or more")
    slo = Slo(inputs.ttft_ms / 1e3, inputs.tpot_ms / 1e3)
    tpots = [one.tpot_s for one in timelines if one.tpot_s is not None]
    gaps = sum(one.num_tokens - 1 for one in timelines)
    decode_s = math.fsum(one.tpot_s * (one.num_tokens - 1) for one in timelines if one.tpot_s is not None)
    good = [one for one in timelines if slo.is_met(one)]
    each = percentiles(tpots)
    first = percentiles([one.ttft_s for one in timelines if one.ttft_s is not None])
    sheet.put("ttft_mean_s", first.mean, "s", "TTFT, mean", "first token - arrival")
    sheet.put("ttft_p99_s", first.p99, "s", "TTFT, p99", "99 of 100 are no slower")
    sheet.put("tpot_mean_s", each.mean, "s", "TPOT, mean of requests", "(E2E - TTFT) / (tokens - 1)")
    sheet.put("tpot_p50_s", each.p50, "s", "TPOT, p50", "half are no slower")
    sheet.put("tpot_p99_s", each.p99, "s", "TPOT, p99", "99 of 100 are no slower")
    sheet.put("itl_mean_s", decode_s / gaps if gaps else None, "s", "ITL, mean of gaps", "all gaps, each counted once")
    speed = 1.0 / each.mean if each.mean else None
    sheet.put("tokens_per_s_each", speed, "tokens/s", "tokens a second each", "1 / TPOT")
    sheet.put("good_fraction", len(good) / len(timelines), "share", "good requests", "every target met")


def _timeline(text: str) -> Timeline:
    try:
        ttft_ms, e2e_ms, tokens = text.split(":")
        ttft_s, e2e_s, count = float(ttft_ms) / 1e3, float(e2e_ms) / 1e3, int(tokens)
    except ValueError:
        raise ConfigError(f"request takes TTFT:E2E:TOKENS, in ms, such as 200:2200:50, not {text!r}") from None
    if not (0.0 <= ttft_s <= e2e_s < math.inf and count >= 1):
        raise ConfigError(f"request={text}: E2E is no less than TTFT, and there is one token or more")
    timeline = Timeline(0.0, 0)
    timeline.first_token_s, timeline.last_token_s = ttft_s, e2e_s
    timeline.num_tokens, timeline.outcome = count, Outcome.STOP
    return timeline


@dataclass(frozen=True)
class QueueInputs:
    """How long requests wait, by how much of the capacity is asked for."""

    rate: float = 8.0
    """Requests that arrive a second (l)"""
    capacity: float = setting(10.0)
    """Requests that can be served a second (m)"""


def queue(inputs: QueueInputs, sheet: Sheet) -> None:
    rate, capacity = positive("rate", inputs.rate), positive("capacity", inputs.capacity)
    time_s = figures.mean_time_in_queue_s(rate, capacity)
    sheet.put("rho", rate / capacity, "share", "utilisation (rho)", "rate / capacity")
    sheet.put("is_stable", time_s is not None, "", "stable", "rho < 1")
    sheet.put("time_s", time_s, "s", "time inside, waiting and served (W)", "1 / (capacity - rate)")
    wait_s = None if time_s is None else time_s - 1.0 / capacity
    sheet.put("wait_s", wait_s, "s", "time waiting", "W - 1 / capacity")
    inside = None if time_s is None else figures.little(rate, time_s)
    sheet.put("inside", inside, "", "requests inside (L)", "rate x W (Little's law)")
    if time_s is None:
        sheet.notes.append("unstable: more is asked than can be served, so the queue grows as long as it lasts")


@dataclass(frozen=True)
class BatchingInputs:
    """What waiting for the longest answer of a batch costs."""

    answers: str = "7x50,1x500"
    """Answer lengths of a batch: 50,50,500, or 7x50,1x500"""
    step_ms: float = setting(10.0)
    """Time of a step"""
    slots: int = setting(8)
    """Sequences that run at once"""


def batching(inputs: BatchingInputs, sheet: Sheet) -> None:
    answers = _counts(inputs.answers)
    slots, step_s = int(positive("slots", inputs.slots)), positive("step_ms", inputs.step_ms) / 1e3
    rounds = [answers[start : start + slots] for start in range(0, len(answers), slots)]
    static_s = sum(max(members) for members in rounds) * step_s
    total = sum(answers)
    sheet.put("tokens", total, "tokens", "tokens asked for", "the sum of answers")
    sheet.put("static_s", static_s, "s", "static batches take", "the longest answer of each batch x step")
    sheet.put("static_tokens_per_s", total / static_s, "tokens/s", "static batching", "tokens / static_s")
    use = total * step_s / (static_s * slots)
    sheet.put("static_slot_use", use, "share", "slots in use, static", "tokens / (slots x steps)")
    full = slots / step_s
    sheet.put("continuous_tokens_per_s", full, "tokens/s", "continuous batching, slots kept full", "slots / step")
    sheet.put("gain", full * static_s / total, "", "times as much", "continuous / static")


def _counts(text: str) -> list[int]:
    found: list[int] = []
    try:
        for part in text.replace(" ", "").split(","):
            count, sign, length = part.partition("x")
            found += [int(length)] * int(count) if sign else [int(count)]
    except (ValueError, MemoryError, OverflowError):
        found = []
    if not found or min(found) < 1 or len(found) > 100_000:
        raise ConfigError(f"answers are {text!r}; write lengths with commas between: 50,50,500 or 7x50,1x500")
    return found


@dataclass(frozen=True)
class ShedInputs(Checked):
    """Whether the next request is let in."""

    queue: float = setting(0.9, 0, 1)
    """Share of the queue that is full"""
    kv_used: float = setting(0.0, 0, 1)
    """Share of the KV cache that is held"""
    kv_asked: float = setting(0.0, 0, 1)
    """Share of it that the request may come to need"""


def shed(inputs: ShedInputs, sheet: Sheet) -> None:
    chance = figures.shed_chance(inputs.queue)
    is_over = inputs.kv_used + inputs.kv_asked > KV_LIMIT
    sheet.put("chance", chance, "share", "refused, by the queue", "(queue - .8) / .2 above .8")
    sheet.put("is_over_kv", is_over, "", "refused, by the cache", "kv_used + kv_asked > .95")
    sheet.put("refused", 1.0 if is_over else chance, "share", "refused", "1 if the cache is over, else the chance")


@dataclass(frozen=True)
class SamplingInputs:
    """How temperature, top-k and top-p reshape the next token's probabilities."""

    probabilities: str = setting(".42,.15,.12,.08,.06")
    """Probabilities of the likeliest tokens, with commas between; what they lack to 1 is the tail"""
    temperature: float = 1.0
    """Divides the logits: below 1 sharper, above 1 flatter"""
    top_k: int | None = None
    """Keep so many of the likeliest"""
    top_p: float = 1.0
    """Keep the likeliest until they hold this share"""
    tail: int = setting(0)
    """Tokens that the rest is spread over evenly; 0 leaves the tail out"""


def sampling(inputs: SamplingInputs, sheet: Sheet) -> None:
    named = _probabilities(inputs.probabilities)
    rest = max(0.0, 1.0 - math.fsum(named))
    everything = named + [rest / inputs.tail] * inputs.tail if inputs.tail > 0 else named
    kept = _kept(everything, inputs)
    weights = [math.pow(one, 1.0 / positive("temperature", inputs.temperature)) for one in everything[:kept]]
    whole = math.fsum(weights)
    shares = tuple(weight / whole for weight in weights)
    entropy = -math.fsum(share * math.log2(share) for share in shares if share > 0.0)
    sheet.put("kept", kept, "tokens", "tokens kept", "top-k by count, top-p by mass")
    mass = math.fsum(everything[:kept])
    sheet.put("kept_mass", mass, "share", "their share before", "the sum of their probabilities")
    sheet.put("shares", shares[: len(named)], "share", "their shares after", "p^(1/T) / sum")
    sheet.put("largest", shares[0], "share", "the likeliest", "p^(1/T) / sum")
    sheet.put("entropy", entropy, "bits", "uncertainty left", "- sum of p log2 p")


def _probabilities(text: str) -> list[float]:
    try:
        found = sorted((float(part) for part in text.split(",")), reverse=True)
    except ValueError:
        found = []
    if not found or not all(0.0 < one <= 1.0 for one in found) or math.fsum(found) > 1.0 + 1e-9:
        raise ConfigError(f"probabilities are {text!r}; write shares above 0 with commas between, together at most 1")
    return found


def _kept(probabilities: list[float], inputs: SamplingInputs) -> int:
    """By count first, then by mass: the token that reaches the share is kept too."""
    count = min(len(probabilities), inputs.top_k or len(probabilities))
    mass = 0.0
    for place, probability in enumerate(probabilities[:count]):
        mass += probability
        if mass >= inputs.top_p - 1e-12:
            return place + 1
    return count
