"""Reasoning is split off the same way however the text comes, in time proportional to it."""

import random

import pytest

from penstock.runtime.text.stream.reasoning import ReasoningStyle, SplitText
from penstock.runtime.text.stream.styles import STYLES, style_of_template
from tests.text.templates import CHATML, DEEPSEEK, QWEN
from tests.text.timing import assert_proportional

PIECES = {
    "think": ["<think>", "</think>", "<thi", "nk>", "</", "\n", " ", "a", "b <", "<think", "é👍"],
    "seed": ["<seed:think>", "</seed:think>", "<seed", ":think>", " \n", "x"],
    "magistral": ["[THINK]", "[/THINK]", "[", "THINK]", "[/", "\n\n", "y"],
    "granite": ["Here is my thought process:", "Here's my response:", "Here is my response:", "Here", " is my ", "z\n"],
    "harmony": [
        *(
            "<|channel|>",
            "analysis",
            "final",
            "commentary",
            "<|message|>",
            "<|end|>",
            "<|start|>",
            "assistant",
            "<|call|>",
        ),
        *("<|return|>", " to=functions.f", " <|constrain|>json", "<|", "|>", "x", "\n", "to=", "{}"),
        *("<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"),
    ],
}


def streamed(style: ReasoningStyle, text: str, rng: random.Random, *, is_open: bool) -> SplitText:
    splitter = style.splitter(is_open=is_open)
    reasoning = content = ""
    position = 0
    while position < len(text):
        length = rng.choice((0, 1, 1, 2, 4, 40))
        delta = splitter.feed(text[position : position + length])
        reasoning += delta.reasoning
        content += delta.content
        position += length
    last = splitter.flush()
    return SplitText(reasoning + last.reasoning, content + last.content)


@pytest.mark.parametrize("name", STYLES)
def test_pieces_are_split_like_the_whole(name: str) -> None:
    style, rng = STYLES[name], random.Random(0)
    for _ in range(1500):
        text = "".join(rng.choice(PIECES[name]) for _ in range(rng.randrange(9)))
        is_open = rng.random() < 0.4
        assert streamed(style, text, rng, is_open=is_open) == style.split(text, is_open=is_open), (text, is_open)


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "hm", "yes"),
        ("hm\n</think>\n\nyes", True, "hm", "yes"),
        ("<think>hm</think>yes", True, "hm", "yes"),
        ("no tags here", False, "", "no tags here"),
        ("  no tags here", False, "", "  no tags here"),
        ("<think>never closed ", False, "never closed", ""),
        ("never closed", True, "never closed", ""),
        ("<think>\n\n</think>\n\nquick", False, "", "quick"),
        ("answer <think>late</think>", False, "", "answer <think>late</think>"),
        ("<think>a</think>b</think>c", False, "a", "b</think>c"),
        ("", False, "", ""),
        ("", True, "", ""),
    ],
)
def test_thoughts_between_tags(text: str, is_open: bool, reasoning: str, content: str) -> None:
    assert STYLES["think"].split(text, is_open=is_open) == (reasoning, content)


CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "content"),
    [
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
            *(False, "hm", "yes"),
        ),
        ("<|channel|>final<|message|>yes", False, "", "yes"),
        ("hm<|end|><|start|>assistant<|channel|>final<|message|>yes", True, "hm", "yes"),
        ("<|channel|>analysis<|message|>a<|end|><|channel|>analysis<|message|>b", False, "a\nb", ""),
        (CALL, False, "", CALL),
        ("<|channel|>analysis<|message|>hm<|end|>" + CALL, False, "hm", CALL),
        ("<|channel|>commentary<|message|>I will look.<|end|>", False, "", "I will look."),
        ("plain words", False, "", "plain words"),
        ("<|channel|>ana", False, "", ""),
    ],
)
def test_harmony_channels(text: str, is_open: bool, reasoning: str, content: str) -> None:
    assert STYLES["harmony"].split(text, is_open=is_open) == (reasoning, content)


@pytest.mark.parametrize(
    ("name", "prompt", "is_open"),
    [
        ("think", "<|Assistant|><think>\n", True),
        ("think", "<|im_start|>assistant\n", False),
        ("think", "<think>\n\n</think>\n\n", False),
        ("harmony", "<|start|>assistant", False),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", True),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>", False),
    ],
)
def test_prompts_that_open_the_reasoning(name: str, prompt: str, is_open: bool) -> None:
    assert STYLES[name].is_open(prompt) is is_open


def test_a_template_implies_its_style() -> None:
    assert style_of_template(QWEN) is style_of_template(DEEPSEEK) is STYLES["think"]
    assert style_of_template(CHATML) is None
    assert style_of_template("{{ '<|channel|>final' }}") is STYLES["harmony"]


HOSTILE = {
    "think": ["<think>" + "<" * 60_000, "<think>" + "</think" * 8_000, " " * 60_000, "<think>" + " \n" * 30_000 + "x"],
    "seed": ["<seed:think>" + "</seed:" * 8_000],
    "magistral": ["[THINK]" + "[/" * 30_000],
    "granite": ["Here is my thought process:" + "Here is my " * 5_000],
    "harmony": [
        "<|" * 30_000,
        "<|channel|>" * 6_000,
        "<|message|>" * 6_000,
        "<|channel|>analysis<|message|>" + "<|en" * 15_000,
    ],
}


@pytest.mark.parametrize("name", STYLES)
def test_time_is_proportional_to_the_text(name: str) -> None:
    style = STYLES[name]

    def read(text: str) -> None:
        splitter = style.splitter(is_open=False)
        for character in text:
            splitter.feed(character)
        splitter.flush()

    for text in HOSTILE[name]:
        assert_proportional(read, text)
