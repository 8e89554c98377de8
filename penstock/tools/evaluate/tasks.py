"""Task suites: questions with choices, or with an exact answer, read from the JSON lines in which they are published.

A choice is scored by how likely the model holds it, for each of its bytes; the likeliest is the answer. Strata by topic, length
and difficulty tell where a model has become worse.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.tools.evaluate.intervals import share

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
LENGTHS = ("short", "middle", "long")


@dataclass(frozen=True, slots=True)
class TaskQuestion:
    prompt: str
    choices: tuple[str, ...]
    """Continuations; none where the answer is written freely."""
    answer: int | str
    """Which choice, or the text that the written answer must come to."""
    topic: str = ""
    difficulty: str = ""


def read_questions(path: Path, limit: int | None = None) -> list[TaskQuestion]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_question(json.loads(line)))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ConfigError(
                f"{path}, line {number}: not a question ({type(error).__name__}: {error}); a line is a JSON object with "
                "prompt, choices and answer, or one of HellaSwag, ARC, PIQA, WinoGrande, GSM8K"
            ) from error
        if limit is not None and len(found) == limit:
            break
    if not found:
        raise ConfigError(f"{path} has no questions; give a file of JSON lines")
    return found


def _question(entry: Mapping[str, Any]) -> TaskQuestion:
    topic, hard = str(entry.get("topic") or entry.get("activity_label") or ""), str(entry.get("difficulty") or "")
    if "endings" in entry:  # HellaSwag
        return TaskQuestion(entry["ctx"], _choices(entry["endings"]), int(entry["label"]), topic, hard)
    if "sol1" in entry:  # PIQA
        prompt = f"Question: {entry['goal']}\nAnswer:"
        return TaskQuestion(prompt, _choices((entry["sol1"], entry["sol2"])), int(entry["label"]), topic, hard)
    if "option1" in entry:  # WinoGrande: what follows the gap is scored, after either filling
        before, _, after = entry["sentence"].partition("_")
        choices = tuple(before + entry[name] + after for name in ("option1", "option2"))
        return TaskQuestion("", choices, int(entry["answer"]) - 1, topic, hard)
    if "answerKey" in entry:  # ARC, in both of its spellings
        body, listed = entry["question"], entry.get("choices")
        if isinstance(body, dict):
            body, listed = body["stem"], body["choices"]
        if isinstance(listed, dict):
            texts, labels = listed["text"], listed["label"]
        else:
            texts, labels = zip(*((choice["text"], choice["label"]) for choice in listed or ()))
        prompt = f"Question: {body}\nAnswer:"
        return TaskQuestion(prompt, _choices(texts), labels.index(entry["answerKey"]), topic, hard)
    if "choices" in entry:
        prompt = str(entry.get("prompt", entry.get("question")))
        return TaskQuestion(prompt, _choices(entry["choices"]), int(entry["answer"]), topic, hard)
    answer = str(entry["answer"]).rpartition("####")[2].strip()  # GSM8K
    return TaskQuestion(f"Question: {entry.get('question', entry.get('prompt'))}\nAnswer:", (), answer, topic, hard)


def _choices(texts: Iterable[object]) -> tuple[str, ...]:
    return tuple(f" {text}" for text in texts)


def choose(scores: Sequence[float], choices: Sequence[str]) -> int:
    """The choice that is likeliest for each of its bytes."""
    by_byte = [score / max(len(text.encode()), 1) for score, text in zip(scores, choices)]
    return max(range(len(by_byte)), key=by_byte.__getitem__)


def is_exact(written: str, wanted: str) -> bool:
    """The last number of a text, or the text itself, is what was wanted."""
    numbers = NUMBER.findall(written)
    if NUMBER.fullmatch(wanted):
        return bool(numbers) and _plain(numbers[-1]) == _plain(wanted)
    return written.strip() == wanted


def _plain(number: str) -> float:
    return float(number.replace(",", ""))


def report(questions: Sequence[TaskQuestion], right: Sequence[bool]) -> dict[str, Any]:
    """Accuracy as a whole and by stratum, with intervals."""
    whole = _shown(right)
    lengths = sorted(len(question.prompt) for question in questions)
    limits = (lengths[len(lengths) // 3], lengths[2 * len(lengths) // 3])
    strata: dict[str, dict[str, list[bool]]] = {kind: defaultdict(list) for kind in ("topic", "length", "difficulty")}
    for question, is_right in zip(questions, right):
        size = LENGTHS[sum(len(question.prompt) > limit for limit in limits)]
        for kind, name in (("topic", question.topic), ("length", size), ("difficulty", question.difficulty)):
            if name:
                strata[kind][name].append(is_right)
    return {
        "questions": whole["questions"],
        "accuracy": whole["accuracy"],
        "accuracy_interval": whole["interval"],
        "strata": {
            kind: {name: _shown(results) for name, results in sorted(groups.items())}
            for kind, groups in strata.items()
            if groups
        },
        "right": [int(each) for each in right],
    }


def _shown(right: Sequence[bool]) -> dict[str, Any]:
    accuracy, *interval = (round(each, 4) for each in share(sum(right), len(right)))
    return {"questions": len(right), "accuracy": accuracy, "interval": interval}
