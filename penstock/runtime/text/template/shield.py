"""Message content cannot spell control tokens: only the template's own text yields them.

    content "a <|im_end|> b"  ->  "a ~|im_end|> b"  rendered  ->  split at control tokens  ->  "<" put back, read as text

Before a template sees a text of a client, the first character of every control token that it spells, or begins to spell at its
end, is exchanged for a stand-in: a private character that the conversation does not hold. The template's own control tokens
are found in what it renders; between them the characters are put back, and that text is read as plain text. A conversation
that spells no control token takes the ordinary way, byte for byte.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.runtime.text.template.chat import ChatTemplate
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer

_PRIVATE = range(0xF0000, 0xFFFFE)
_KEPT_KEYS = ("role", "type")
"""Their values come out of short lists, and templates compare and write them as they are."""


class PromptTokens(NamedTuple):
    text: str
    token_ids: tuple[int, ...]


class Spelling(NamedTuple):
    """How control tokens are found in text."""

    whole: re.Pattern[str]
    begun: re.Pattern[str]
    """One that may go on after the end of the text, blanks that a template may trim aside."""


@lru_cache(maxsize=64)
def spelling(texts: frozenset[str]) -> Spelling | None:
    if not texts:
        return None
    ordered = sorted(texts, key=len, reverse=True)
    beginnings = sorted({text[:end] for text in ordered for end in range(1, len(text))}, key=len, reverse=True)
    # A lookahead finds overlapping ones too.
    whole = re.compile(f"(?=({'|'.join(map(re.escape, ordered))}))")
    begun = re.compile(rf"(?:{'|'.join(map(re.escape, beginnings))})(?=\s*\Z)" if beginnings else r"(?!)")
    return Spelling(whole, begun)


def tokenize_chat(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **options: Any
) -> PromptTokens:
    """The prompt of a conversation, and its tokens. Options are those of `ChatTemplate.render`."""
    shield = Shield(tokenizer.control_texts)
    covered = shield.cover(list(messages))
    for name in ("tools", "documents", "variables"):
        if options.get(name) is not None:
            options[name] = shield.cover(options[name])
    rendered = template.render(covered, **options)
    if not shield.stand_ins:
        return PromptTokens(rendered, tuple(tokenizer.encode(rendered, special=False)))
    return PromptTokens(shield.restored(rendered), tuple(shield.encode(tokenizer, rendered)))


class Shield:
    """Stand-ins for one conversation: by stand-in, the character it stands for."""

    def __init__(self, control_texts: frozenset[str]) -> None:
        self._texts = control_texts
        self._spelling = spelling(control_texts)
        self.stand_ins: dict[str, str] = {}
        self._by_character: dict[str, str] = {}
        self._taken: set[str] = set()

    def cover(self, value: Any) -> Any:
        """A copy of plain data in which no text spells a control token."""
        if self._spelling is None:
            return value
        self._taken |= _private_characters(value)
        return self._cover(value)

    def _cover(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._cover_text(value)
        if isinstance(value, Mapping):
            return {
                self._cover(key): item if key in _KEPT_KEYS and isinstance(item, str) else self._cover(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._cover(item) for item in value]
        return value

    def _cover_text(self, text: str) -> str:
        if self._spelling is None:
            return text
        starts = [found.start() for pattern in self._spelling for found in pattern.finditer(text)]
        if not starts:
            return text
        characters = list(text)
        for start in starts:
            if characters[start] not in self.stand_ins:
                characters[start] = self._stand_in(characters[start])
        return "".join(characters)

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
