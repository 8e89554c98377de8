"""Numbers that questions of `data/quizzes.json` are drawn with: what is asked, the answer by a calculator, usual mistakes."""

from collections.abc import Mapping
from random import Random
from typing import Any

from penstock.tools.calculate.table import calculate, inputs_of

Numbers = Mapping[str, Any]
"""By the names in braces of a question's words."""


def _values(name: str, **inputs: Any) -> dict[str, Any]:
    found: dict[str, Any] = calculate(name, inputs_of(name, inputs))["textbook"]
    return found


def bytes_read(rng: Random) -> Numbers:
    size, count = rng.choice((8, 13, 70)), rng.choice((100, 200, 500))
    each = _values("throughput", parameters=size * 1e9, bandwidth=1e12)["weight_bytes"]
    tera = each * count / 1e12
    wrong = {"one_giga": each / 1e9, "half_tera": tera / 2, "peta": tera / 1e3}
    return {"size": size, "count": count, "tera": tera, **wrong}


def top_p(rng: Random) -> Numbers:
    first = rng.choice((0.91, 0.93, 0.95))
    sure = _values("sampling", probabilities=f"{first:.2f},.02,.01", top_p=0.9)["kept"]
    unsure = _values("sampling", probabilities=f"{first - 0.72:.2f},.2,.17,.15,.12,.1", top_p=0.9)["kept"]
    return {"sure": sure, "unsure": unsure}


def ridge(rng: Random) -> Numbers:
    name = rng.choice(("h100", "a100", "h200"))
    found = _values("roofline", hardware=name)["ridge"]
    return {"name": name.upper(), "ridge": found, "sparse": 2 * found, "tenth": found / 10, "inverse": 1 / found}


def ridge_batch(rng: Random) -> Numbers:
    bits = rng.choice((16, 8))
    found = _values("users", parameters=8e9, bits=float(bits), hardware="h100", layers=32, heads=32, head_dim=128)
    return {"bits": bits, "batch": found["compute_ceiling"], "fourfold": 4 * found["compute_ceiling"]}


def tpot(rng: Random) -> Numbers:
    ttft, each, count = rng.choice((200, 300)), rng.choice((20, 40)), rng.choice((50, 100))
    e2e = ttft + each * (count - 1)
    found = _values("metrics", request=[f"{ttft}:{e2e}:{count}"])["tpot_mean_s"] * 1e3
    wrong = {"with_ttft": e2e / count, "by_tokens": (e2e - ttft) / count}
    return {"ttft": ttft, "e2e": e2e, "count": count, "tpot": found, **wrong}


def goodput(rng: Random) -> Numbers:
    share, fast, slow = 100 - rng.choice((10, 20, 40)), 100, 120
    good_a, good_b = fast * 0.98, slow * share / 100
    more, less = ("A", "B") if good_a > good_b else ("B", "A")
    return {"fast": fast, "slow": slow, "share": share, "good_a": good_a, "good_b": good_b, "more": more, "less": less}


def static(rng: Random) -> Numbers:
    count, short, long = 7, rng.choice((50, 100)), rng.choice((500, 800))
    found = _values("batching", answers=f"{count}x{short},1x{long}", step_ms=10.0, slots=8)
    speed = found["static_tokens_per_s"]
    answers = {"static": speed, "eighth": speed / 8, "continuous": found["continuous_tokens_per_s"]}
    return {"count": count, "short": short, "long": long, **answers}


def reserving(rng: Random) -> Numbers:
    used, context = rng.choice((50, 100, 200)), 2048
    found = _values("kv", layers=40, heads=40, head_dim=128, context=context, used=used)
    wasted = {"reserved": 100 * found["reserved_waste"], "paged": 100 * found["paged_waste"]}
    return {"used": used, "context": context, "in_use": 100 * used / context, **wasted}


def tau(rng: Random) -> Numbers:
    alpha, gamma = rng.choice((0.6, 0.7, 0.8)), rng.choice((3, 5))
    tau = _values("speculation", acceptance=alpha, drafts=gamma)["tokens_per_round"]
    wrong = {"product": alpha * gamma, "all": gamma + 1, "less_one": tau - 1}
    return {"alpha": alpha, "gamma": gamma, "tau": tau, **wrong}


def size(rng: Random) -> Numbers:
    size, bits = rng.choice((7, 13, 70)), rng.choice((4, 8))
    giga = _values("throughput", parameters=size * 1e9, bits=float(bits), bandwidth=1e12)["weight_bytes"] / 1e9
    return {"size": size, "bits": bits, "giga": giga, "wide": 2 * size, "in_bits": size * bits, "half": giga / 2}


def replicas(rng: Random) -> Numbers:
    tensor, data = rng.choice(((4, 2), (2, 4), (8, 2), (4, 3)))
    return {"tensor": tensor, "data": data, "devices": tensor * data, "summed": tensor + data}
