"""Grammars within grammars: an answer that is constrained only after its reasoning has ended.

Owns how markers are written in a grammar: a marker that is one token of the vocabulary is named by its id, others are texts.
"""

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from penstock.runtime.text.grammar.kinds import quoted, translate
from penstock.runtime.text.grammar.vocabulary import marker_ids
from penstock.runtime.text.stream.reasoning import ReasoningStyle, TaggedStyle
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer

TEXT_RULE = r"TEXT: /(?s:.*)/"
BLANKS_RULE = r"BLANKS: /[ \t\r\n]{0,4}/"
COMPOSED = "composed"


class Markers:
    """Texts with markers in them, as a grammar for one vocabulary writes them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = {tokenizer.token(token_id) or "": token_id for token_id in marker_ids(tokenizer)}
        self._ids = {text: token_id for text, token_id in texts.items() if text}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def token_id(self, text: str) -> int | None:
        return self._ids.get(text)

    def literal(self, text: str) -> str:
        """A text, tokens that stand in it by their ids; nothing for an empty one."""
        parts: list[str] = []
        position = 0
        for found in self._pattern.finditer(text) if self._pattern else ():
            if found.start() > position:
                parts.append(quoted(text[position : found.start()]))
            parts.append(f"<[{self._ids[found[0]]}]>")
            position = found.end()
        if position < len(text):
            parts.append(quoted(text[position:]))
        return " ".join(parts)

    def tokens_in(self, text: str) -> tuple[str, ...]:
        """The markers that stand in a text."""
        return tuple(found[0] for found in self._pattern.finditer(text)) if self._pattern else ()

    def until(self, name: str, marker: str, max_tokens: int | None = None) -> tuple[str, list[str]]:
        """Any text up to and including a marker: a symbol, and the rules that it needs beside `TEXT`.

        With `max_tokens` the marker comes after so many tokens at the latest; only a marker that is a single token can be
        forced.
        """
        token_id = self.token_id(marker)
        if token_id is None:
            return name, [f"{name}[lazy]: TEXT {quoted(marker)}"]
        limit = "" if max_tokens is None else f"[max_tokens={max_tokens}]"
        return name, [
            f"{name}: {name}_text <[{token_id}]> | {name}_spelled"
            if max_tokens is None
            else f"{name}: {name}_text <[{token_id}]>",
            f"{name}_text{limit}: TEXT",
            *([f"{name}_spelled[lazy]: TEXT {quoted(marker)}"] if max_tokens is None else []),
        ]


class Thoughts(NamedTuple):
    """Reasoning between two markers, as a grammar has to let it pass."""

    start: str
    end: str
    is_open: bool
    """The prompt has already opened the reasoning."""
    max_tokens: int | None = None
    between: str = ""
    """Text between the reasoning and what comes before the answer."""
    before: str = ""
    """Text before every answer."""


HARMONY = Thoughts(
    "<|channel|>analysis<|message|>", "<|end|>", False, None, "<|start|>assistant", "<|channel|>final<|message|>"
)


def thoughts_of(style: ReasoningStyle, *, is_open: bool, max_tokens: int | None = None) -> Thoughts:
    if isinstance(style, TaggedStyle):
        return Thoughts(style.starts[0], style.ends[0], is_open, max_tokens)
    return HARMONY._replace(is_open=is_open, max_tokens=max_tokens)


def can_be_ended(style: ReasoningStyle, markers: Markers) -> bool:
    """Reasoning of this style can be forced to end: one token ends it."""
    return markers.token_id(thoughts_of(style, is_open=False).end) is not None


def after_thoughts(grammar: tuple[str, str] | None, thoughts: Thoughts, markers: Markers) -> tuple[str, str]:
    """Kind and source of a grammar that allows any reasoning and constrains the answer after it to this one; without one, the
    answer may be any."""
    kind, source = grammar or ("lark", f"start: TEXT\n{TEXT_RULE}")
    if kind == COMPOSED:
        inner = json.loads(source)["grammars"]
        inner[0] = {**inner[0], "name": "answer"}
    else:
        inner = [{"name": "answer", "lark_grammar": translate(kind, source)}]
    symbol, rules = markers.until("thoughts", thoughts.end, thoughts.max_tokens)
    body = f"{symbol} BLANKS {markers.literal(thoughts.between)}"
    opening = body if thoughts.is_open else f"(BLANKS {markers.literal(thoughts.start)} {body})?"
    start = f"start: {opening} {markers.literal(thoughts.before)} @answer"
    return COMPOSED, composed([start, *rules, TEXT_RULE, BLANKS_RULE], inner)


def composed(rules: Iterable[str], grammars: Iterable[dict[str, str]] = ()) -> str:
    """The source of a composed grammar: its own rules first, then those of the grammars it names."""
    outer = {"name": "whole", "lark_grammar": "\n".join(("%llguidance {}", *rules)) + "\n"}
    return json.dumps({"grammars": [outer, *grammars]}, ensure_ascii=False)
