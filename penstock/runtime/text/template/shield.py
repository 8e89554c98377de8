"""Message content cannot spell control tokens: only the template's own text yields them.

    content "a <|im_end|> b"  ->  "a ~|im_end|> b"  rendered  ->  split at control tokens  ->  "<" put back, read as text

Before a template sees a text of a client, the first character of every control token that it spells, or would spell beside
other text, is exchanged for a stand-in: a private character that the conversation does not hold. Keys and values are alike, at
any depth; only the role of a message and the type of a part of its content are exempt. The template's own control tokens are
found in what it renders; between them the characters are put back, and that text is read as plain text. A conversation that
spells no control token takes the ordinary way, byte for byte.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.runtime.text.template.chat import ChatTemplate
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer

_PRIVATE = range(0xF0000, 0xFFFFE)
_ROLES = frozenset(("assistant", "developer", "function", "ipython", "model", "system", "tool", "user"))
_PARTS = frozenset(("audio", "image", "image_url", "text", "video"))
_KNOWN_WORDS = frozenset(
    (
        *("additionalproperties", "anyof", "arguments", "const", "default", "description", "enum", "format"),
        *("function", "id", "items", "name", "oneof", "parameters", "properties", "required", "return", "strict"),
        *("text", "title", "array", "boolean", "integer", "null", "number", "object", "string", "type"),
        *("high", "low", "medium", "none"),
    )
)
"""Words that templates look for and compare; a control token of such a name is not made of them."""
SIGNS = (1, 2)
"""Signs that a template may write around a text: one or two angle brackets, bars, square brackets."""
_DROPPED = re.compile(r"(?:replace|split)\(\s*(['\"])(.+?)\1")
"""Texts that a template cuts out of others, so that what stood around them comes together."""


class PromptTokens(NamedTuple):
    text: str
    token_ids: tuple[int, ...]


class Spelling(NamedTuple):
    """How control tokens, and pieces that become one beside other text, are found in text."""

    whole: re.Pattern[str]
    """In any case of letters: a template may change it."""
    begun: re.Pattern[str]
    """One that may go on after the end of the text, blanks that a template may trim aside."""
    ended: re.Pattern[str]
    """One whose first signs a template may have written just before the text."""
    first: re.Pattern[str]
    """Any character that one begins with."""
    words: frozenset[str]
    """What is one between signs: some templates write names and keys between angle brackets."""

    def starts(self, text: str) -> list[int]:
        if text and text.strip().casefold() in self.words:
            return [0]
        return [match.start() for pattern in (self.whole, self.begun, self.ended) for match in pattern.finditer(text)]


@lru_cache(maxsize=64)
def spelling(texts: frozenset[str]) -> Spelling | None:
    if not texts:
        return None
    beginnings = {text[:end] for text in texts for end in range(1, len(text))}
    ends = {text[start:] for text in texts for start in SIGNS}
    middles = {text[start:-end] for text in texts for start in SIGNS for end in SIGNS}
    # A part that is a word is nothing to go by: `words` has the whole ones.
    ends, middles = ({part for part in parts if not part.replace("_", "a").isalnum()} for parts in (ends, middles))
    return Spelling(
        # A lookahead finds overlapping ones too.
        whole=re.compile(f"(?=({_any_of(texts)}))", re.IGNORECASE),
        begun=re.compile(rf"(?:{_any_of(beginnings)})(?=\s*\Z)"),
        ended=re.compile(rf"\A\s*(?:{_any_of(ends)}|(?:{_any_of(middles)})(?=\s*\Z))", re.IGNORECASE),
        first=re.compile(_any_of({text[0] for text in texts}), re.IGNORECASE),
        words=frozenset(text.strip("<>[]|{}/｜").casefold() for text in texts) - _KNOWN_WORDS,
    )


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(filter(None, texts), key=len, reverse=True))) or "(?!)"


@lru_cache(maxsize=64)
def _dropped_by(source: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(match[2] for match in _DROPPED.finditer(source)))


def tokenize_chat(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **options: Any
) -> PromptTokens:
    """The prompt of a conversation, and its tokens. Options are those of `ChatTemplate.render`."""
    source = template.source if options.get("tools") is None else template.tool_source
    shield = Shield(tokenizer.control_texts, _dropped_by(source))
    rendered = template.render(messages, **options, cover=shield.cover)
    if not shield.stand_ins:
        return PromptTokens(rendered, tuple(tokenizer.encode(rendered, special=False)))
    return PromptTokens(shield.restored(rendered), tuple(shield.encode(tokenizer, rendered)))


class Shield:
    """Stand-ins for one conversation: by stand-in, the character it stands for."""

    def __init__(self, control_texts: frozenset[str], dropped: tuple[str, ...] = ()) -> None:
        self._texts = control_texts
        self._spelling = spelling(control_texts)
        self._dropped = dropped
        self.stand_ins: dict[str, str] = {}
        self._by_character: dict[str, str] = {}
        self._taken: set[str] = set()

    def cover(self, values: dict[str, Any]) -> dict[str, Any]:
        """What a template is given, with no text that spells a control token.

        Only the role of a message and the type of a part of its content stay as they are: they come out of short lists,
        and templates compare and write them.
        """
        if self._spelling is None:
            return values
        self._taken |= _private_characters(values)
        covered = {name: self._cover(value) for name, value in values.items() if name != "messages"}
        return covered | {"messages": [self._cover_message(message) for message in values["messages"]]}

    def _cover_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        covered = {key: self._cover(value) for key, value in message.items()}
        if message["role"] in _ROLES:
            covered["role"] = message["role"]
        if isinstance(message.get("content"), list):
            for part, given in zip(covered["content"], message["content"], strict=True):
                if isinstance(given, Mapping) and given.get("type") in _PARTS:
                    part["type"] = given["type"]
        return covered

    def _cover(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._cover_text(value)
        if isinstance(value, Mapping):
            return {self._cover(key): self._cover(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._cover(item) for item in value]
        return value

    def _cover_text(self, text: str) -> str:
        if self._spelling is None:
            return text
        starts = self._spelling.starts(text)
        if any(self._spelling.starts(shorter) for shorter in self._shortened(text)):
            starts += [match.start() for match in self._spelling.first.finditer(text)]
        if not starts:
            return text
        characters = list(text)
        for start in starts:
            if characters[start] not in self.stand_ins:
                characters[start] = self._stand_in(characters[start])
        return "".join(characters)

    def _shortened(self, text: str) -> Iterator[str]:
        """The text as it may become where the template cuts something out of it."""
        for _ in self._dropped:
            for dropped in self._dropped:
                if dropped in text:
                    text = text.replace(dropped, "")
                    yield text

    def _stand_in(self, character: str) -> str:
        if character not in self._by_character:
            stand_in = next(chr(code) for code in _PRIVATE if chr(code) not in self._taken)
            self._taken.add(stand_in)
            self._by_character[character] = stand_in
            self.stand_ins[stand_in] = character
        return self._by_character[character]

    def restored(self, text: str) -> str:
        """With the characters of the conversation in their places, as a template may have written them."""
        for stand_in, character in self.stand_ins.items():
            text = text.replace(stand_in, character).replace(json.dumps(stand_in)[1:-1], character)
        return text

    def encode(self, tokenizer: Tokenizer, rendered: str) -> list[int]:
        """Control tokens where the template wrote them; what clients wrote is text."""
        token_ids: list[int] = []
        pattern = re.compile(f"({'|'.join(map(re.escape, sorted(self._texts, key=len, reverse=True)))})")
        ordinary = ""
        for number, part in enumerate(pattern.split(rendered)):
            restored = part if number % 2 else self.restored(part)
            if restored == part:  # the template's own token, or text that spells none
                ordinary += part
                continue
            token_ids += tokenizer.encode(ordinary, special=False)
            token_ids += tokenizer.encode(restored, special=False, parse_special=False)
            ordinary = ""
        return token_ids + tokenizer.encode(ordinary, special=False)


def _private_characters(value: Any) -> set[str]:
    if isinstance(value, str):
        return set() if value.isascii() else {character for character in value if ord(character) in _PRIVATE}
    if isinstance(value, Mapping):
        return {found for pair in value.items() for item in pair for found in _private_characters(item)}
    if isinstance(value, list | tuple):
        return {found for item in value for found in _private_characters(item)}
    return set()
