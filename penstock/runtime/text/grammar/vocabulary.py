"""A model's tokens as the grammar engine sees them: the bytes each one stands for, and which end an answer.

Special tokens are not text: a grammar names them by id. All others are their bytes, whichever way a text is tokenized.
"""

import re
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.runtime.text.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

LINE, MAX_LINE_TOKENS = "a\n", 4
_MARKER = re.compile(r"<[^<>\s]*(?:[|｜_▁]|think)[^<>\s]*>|\[/?[A-Z_]+\]")


def marker_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that a grammar names by id: special ones, and those that mark a place in a text whatever their file calls them."""
    added = (token_id for token_id in tokenizer.added_ids if _MARKER.fullmatch(tokenizer.token(token_id) or ""))
    return tokenizer.special_ids | frozenset(added)


class TokenBytes:
    """What the engine reads of a tokenizer; the names are the engine's."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes]) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokens
        self.special_token_ids = sorted(marker_ids(tokenizer) | _ends(tokenizer))
        self.eos_token_id = min(_ends(tokenizer))

    def __call__(self, text: str) -> list[int]:
        """Tokens of a text that continues another: their bytes are the text's and no more.

        Tokenizers that put a space before every text get to see a line before this one, whose tokens are left out.
        """
        wanted = text.encode("utf-8", "replace")
        for before, most in (("", 0), (LINE, MAX_LINE_TOKENS)):
            token_ids = self._tokenizer.encode(before + text, special=False, parse_special=False)
            for first in range(most + 1):
                if b"".join([self.tokens[token_id] for token_id in token_ids[first:]]) == wanted:
                    return token_ids[first:]
        return [self._by_byte[byte] for byte in wanted if byte in self._by_byte]

    @cached_property
    def _by_byte(self) -> dict[int, int]:
        """Tokens of a byte each, by their bytes."""
        return {token[0]: token_id for token_id, token in enumerate(self.tokens) if len(token) == 1}


def whole_vocabulary(tokenizer: Tokenizer, num_scores: int) -> "LLTokenizer":
    """Every token. `num_scores` is what the model scores: often a few more than there are tokens."""
    tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
    return _made(tokenizer, tokens, num_scores)


def few_tokens(tokenizer: Tokenizer) -> "LLTokenizer":
    """One token a byte, and the special ones: enough to tell whether a grammar can be used, and quick to make."""
    markers = marker_ids(tokenizer) | _ends(tokenizer)
    tokens = [b""] * max(tokenizer.vocab_size, 256 + len(markers))
    plain = (token_id for token_id in range(len(tokens)) if token_id not in markers)
    for byte, token_id in zip(range(256), plain):
        tokens[token_id] = bytes((byte,))
    return _made(tokenizer, tokens, len(tokens))


def _made(tokenizer: Tokenizer, tokens: list[bytes], size: int) -> "LLTokenizer":
    tokens += [b""] * (size - len(tokens))
    del tokens[size:]
    for token_id in marker_ids(tokenizer) | _ends(tokenizer):
        if token_id < size:
            tokens[token_id] = (tokenizer.token(token_id) or f"<{token_id}>").encode()
    wrapper = TokenBytes(tokenizer, tokens)
    from llguidance import LLTokenizer

    ends = sorted(token_id for token_id in _ends(tokenizer) if token_id < size)
    return LLTokenizer(wrapper, eos_token=ends or [0])  # type: ignore[arg-type]


def _ends(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that end an answer. The engine needs one: in a vocabulary without any, the first token takes that part and is
    not text."""
    return tokenizer.eos_ids or frozenset((0,))
