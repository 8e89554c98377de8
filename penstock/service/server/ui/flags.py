"""Which flags of which command a page may set, and to what: the words a worker is given are made here and nowhere else.

A page can never name a file, a directory or another machine; numbers that decide how long a run takes are bounded. Whether
the values make sense together is left to the command itself, whose error is told.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock.runtime.models.catalog import CONFIGS
from penstock.service.server.http.faults import invalid
from penstock.tools.cost.hardware import ALIASES, HARDWARE

Value = str | float | int | bool | None
Rule = Callable[[Value], bool]

_LENGTHS = re.compile(
    r"\d{1,7}(-\d{1,7})?|lognormal:[\d.]{1,9}:[\d.]{1,9}(:\d{1,7}-\d{1,7})?|sharegpt-(prompts|answers)"
)
_WORD = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")
_LIST = re.compile(r"[a-z0-9][a-z0-9._,=-]{0,200}")
_SLO = re.compile(r"[a-z0-9<>=.,% ]{0,120}")


def number(low: float, high: float) -> Rule:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def matches(pattern: re.Pattern[str]) -> Rule:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def is_model(value: Value) -> bool:
    return isinstance(value, str) and value in CONFIGS


def is_device(value: Value) -> bool:
    return isinstance(value, str) and (value in HARDWARE or value in ALIASES)


def is_switch(value: Value) -> bool:
    return isinstance(value, bool)


_LOAD: dict[str, Rule] = {
    "rate": number(0, 5000),
    "users": number(1, 5000),
    "burstiness": number(0, 100),
    "num-requests": number(1, 10_000),
    "prompts": matches(_LENGTHS),
    "answers": matches(_LENGTHS),
    "shared-prefix": number(0, 100_000),
    "num-prefixes": number(1, 10_000),
    "shared-fraction": number(0, 1),
    "turns": number(1, 50),
    "think-s": number(0, 3600),
    "seed": number(0, 2**31),
}
SIMULATE: Mapping[str, Rule] = {
    **_LOAD,
    "model": is_model,
    "max-context": number(1, 1_000_000),
    "compare": is_switch,
    "hardware": is_device,
    "replicas": number(1, 64),
    "tensor": number(1, 64),
    "pipeline": number(1, 64),
    "expert": number(1, 512),
    "weights": matches(_WORD),
    "overlap": is_switch,
    "policy": matches(_WORD),
    "max-pending": number(1, 100_000),
    "speculate": lambda value: value == "auto" or number(0, 32)(value),
    "acceptance": number(0, 1),
    "draft-cost": number(0, 10),
    "speculate-up-to": number(1, 100_000),
    "prefill-replicas": number(0, 64),
    "local-below": number(0, 1_000_000),
    "transfer-gb-s": number(0.001, 100_000),
    "scale-to": number(1, 64),
    "scale-by": matches(_WORD),
    "scale-target": number(0.01, 10_000),
    "cold-start-s": number(0, 36_000),
    "down-delay-s": number(0, 36_000),
    "deadline-s": number(0.001, 100_000),
    "ttft-s": number(0.0001, 10_000),
    "tpot-s": number(0.0001, 10_000),
    "e2e-s": number(0.0001, 100_000),
    "batching": matches(_WORD),
    "order": matches(_WORD),
    "max-batch-tokens": number(1, 1_000_000),
    "max-sequences": number(1, 100_000),
    "max-waiting": number(1, 1_000_000),
    "max-waiting-tokens": number(1, 1e12),
    "gather-s": number(0, 100),
    "block-size": number(1, 1024),
    "num-blocks": number(1, 10_000_000),
    "memory-fraction": number(0.01, 1),
    "prefix-caching": is_switch,
    "kv": matches(_WORD),
}
_PLANNED = ("rate", "users", "prompts", "answers", "shared-prefix")
PLAN: Mapping[str, Rule] = {
    **{name: rule for name, rule in _LOAD.items() if name in _PLANNED},
    "hardware": matches(_LIST),
    "price": matches(_LIST),
    "slo": matches(_SLO),
    "workload": matches(_WORD),
    "attainment": number(0.01, 1),
    "max-devices": number(1, 64),
    "max-context": number(1, 1_000_000),
    "weights": matches(_LIST),
    "kv": matches(_LIST),
    "api-in": number(0, 10_000),
    "api-out": number(0, 10_000),
}
BENCH: Mapping[str, Rule] = {
    "rate": number(0.01, 1000),
    "concurrency": number(1, 256),
    "num-requests": number(1, 2000),
    "duration-s": number(1, 120),
    "prompts": matches(_LENGTHS),
    "answers": matches(_LENGTHS),
    "shared-prefix": number(0, 16_000),
    "slo": matches(_SLO),
    "find-knee": is_switch,
    "repeats": number(1, 5),
}
PROFILE: Mapping[str, Rule] = {"batch": number(1, 256), "context": number(1, 16_384), "prompt": number(0, 4096)}
COMMANDS: Mapping[str, Mapping[str, Rule]] = {"simulate": SIMULATE, "plan": PLAN, "bench": BENCH, "profile": PROFILE}


def words_of(command: str, flags: Mapping[str, Any]) -> list[str]:
    """The flags as words of a command line. Raises for one that pages may not set, or not to that."""
    rules = COMMANDS[command]
    words = []
    for name, value in flags.items():
        rule = rules.get(name)
        if rule is None:
            raise invalid(f"{name[:40]!r} cannot be set from a page", "flags", "unsupported_parameter")
        if not rule(value):
            raise invalid(f"{name} may not be {str(value)[:60]!r} here", "flags")
        words.append(f"{name}={_plain(value)}")
    return words


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
