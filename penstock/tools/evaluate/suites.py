"""Suites that travel inside Python packages, brought to questions with choices."""

import gzip
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.errors import ConfigError
from penstock.tools.evaluate.tasks import TaskQuestion

_MMLU = re.compile(
    r"Q: (?P<body>.+?)\s*\(A\) (?P<A>.+?) ?\(B\) (?P<B>.+?) ?\(C\) (?P<C>.+?) ?\(D\) (?P<D>.+?)\s*\nA: "
    r".*?[Tt]he answer is \((?P<key>[ABCD])\)",
    re.DOTALL,
)
OTHERS = 3
"""Wrong choices of a HumanEval question: the bodies of other functions."""


def mmlu(path: Path) -> list[TaskQuestion]:
    """The five worked questions of each topic; a topic of which one cannot be told apart from the next gives fewer."""
    found = []
    for topic, text in json.loads(path.read_text()).items():
        for match in _MMLU.finditer(text):
            choices = tuple(f" {match[letter].strip()}" for letter in "ABCD")
            prompt = f"Question: {match['body']}\nAnswer:"
            found.append(TaskQuestion(prompt, choices, "ABCD".index(match["key"]), topic))
    return found


def humaneval(path: Path) -> list[TaskQuestion]:
    """Which of four bodies is the function's: nothing that a model writes is run."""
    entries = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines() if line.strip()]
    found = []
    for number, entry in enumerate(entries):
        bodies = [entries[(number + 17 * step) % len(entries)]["canonical_solution"] for step in range(OTHERS + 1)]
        place = number % (OTHERS + 1)
        bodies[0], bodies[place] = bodies[place], bodies[0]
        found.append(TaskQuestion(entry["prompt"], tuple(bodies), place, "code"))
    return found


SUITES: Mapping[str, Callable[[Path], list[TaskQuestion]]] = {"mmlu": mmlu, "humaneval": humaneval}


def read_suite(name: str, path: Path) -> list[TaskQuestion]:
    try:
        found = SUITES[name](path)
    except (ValueError, KeyError, OSError) as error:
        raise ConfigError(f"{path} does not hold the questions of {name}: {error}") from error
    if not found:
        raise ConfigError(f"{path} holds no question of {name}")
    return found
