"""Questions are read as they are published; the likeliest choice is the answer."""

import gzip
import json
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.tools.evaluate.suites import humaneval, mmlu
from penstock.tools.evaluate.tasks import choose, is_exact, read_questions, report

pytestmark = pytest.mark.plain

PUBLISHED = [
    {"ctx": "A man sits", "endings": ["down.", "up.", "in.", "by."], "label": "2", "activity_label": "Rest"},
    {"goal": "Open it", "sol1": "Turn", "sol2": "Kick", "label": 0},
    {"sentence": "The cup is in _ because it fits.", "option1": "the box", "option2": "the van", "answer": "2"},
    {"question": "Why?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"},
    {
        "question": {"stem": "Why?", "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]},
        "answerKey": "1",
    },
    {"prompt": "Pick", "choices": ["x", "y", "z"], "answer": 2, "topic": "letters", "difficulty": "easy"},
    {"question": "6 times 7?", "answer": "It is 42.\n#### 42"},
]


def test_published_questions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, PUBLISHED)))
    found = read_questions(path)
    assert [question.answer for question in found] == [2, 0, 1, 1, 0, 2, "42"]
    assert found[2].choices[1] == "The cup is in the van because it fits."
    assert len(read_questions(path, 3)) == 3
    path.write_text('{"ctx": 1}')
    with pytest.raises(ConfigError, match="line 1"):
        read_questions(path)


def test_choices_are_judged_by_byte_and_answers_by_their_last_number() -> None:
    assert choose([-10.0, -12.0], ["short", "a much longer choice"]) == 1
    assert is_exact("So 3 + 4 makes 7, and six of them 1,042.", "1042")
    assert not is_exact("It is 41", "42")
    assert not is_exact("I cannot tell", "42")


def test_strata_add_up_to_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    lines = [
        {"prompt": "p" * (number + 1), "choices": ["x", "y"], "answer": 0, "topic": f"t{number % 3}"}
        for number in range(30)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    questions = read_questions(path)
    found = report(questions, [number % 2 == 0 for number in range(30)])
    assert found["accuracy"] == 0.5
    for groups in found["strata"].values():
        assert sum(each["questions"] for each in groups.values()) == 30
    assert set(found["strata"]) == {"topic", "length"}


def test_suites_of_packages_become_questions(tmp_path: Path) -> None:
    opening = "About it.\n\nQ: One?\n(A) a (B) b (C) c (D) d\nA: Let's see. The answer is (C).\n\n"
    text = opening + "Q: Two?\n(A) e (B) f (C) g (D) h\nA: The answer is (A)."
    (tmp_path / "mmlu").write_text(json.dumps({"sums": text}))
    first, second = mmlu(tmp_path / "mmlu")
    assert (first.answer, second.answer, second.choices[3], first.topic) == (2, 0, " h", "sums")
    lines = [json.dumps({"prompt": f"def f{n}():\n", "canonical_solution": f"    return {n}\n"}) for n in range(40)]
    (tmp_path / "code").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = humaneval(tmp_path / "code")
    assert all(each.choices[each.answer] == f"    return {n}\n" for n, each in enumerate(found))  # type: ignore[index]
    assert all(len(set(each.choices)) == 4 for each in found)
