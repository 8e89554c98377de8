"""Texts drawn at random out of what a grammar allows: the worst model there can be."""

import random
from functools import cache

from penstock.runtime.files import open_files
from penstock.runtime.text.grammar.compiler import GrammarCompiler
from penstock.runtime.text.grammar.matcher import GrammarMatcher
from penstock.runtime.text.grammar.vocabulary import whole_vocabulary
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from tests.real import DEFAULT, model_path

MODEL = DEFAULT
"""Whose vocabulary is used."""
CLOSING = '"]},:0123456789truefalsnl- '


@cache
def tokenizer() -> Tokenizer:
    return open_files(str(model_path(MODEL))).tokenizer


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(lambda: whole_vocabulary(tokenizer(), tokenizer().vocab_size))


@cache
def closing_ids() -> frozenset[int]:
    """Tokens that bring a text to its end rather than on."""
    words = tokenizer()
    return frozenset(
        i for i in range(words.vocab_size) if set(words.token_bytes(i).decode("utf-8", "replace")) <= set(CLOSING)
    )


def allowed(matcher: GrammarMatcher, drafts: tuple[int, ...] = ()) -> list[list[int]]:
    """Token ids that may be drawn: as the matcher stands, and after each draft."""
    num_words = -(-tokenizer().vocab_size // 32)
    width = num_words * 4
    bits = bytearray(width * (1 + len(drafts)))
    compiler().fill([(matcher, drafts)], memoryview(bits), num_words)
    return [_ids(bits[row * width : (row + 1) * width]) for row in range(1 + len(drafts))]


def _ids(row: bytearray) -> list[int]:
    return [8 * place + bit for place, byte in enumerate(row) if byte for bit in range(8) if byte >> bit & 1]


def write(matcher: GrammarMatcher, seed: int, max_tokens: int = 300) -> list[int] | None:
    """Tokens of a text that the grammar allows, ended where it may end; None if it did not come to an end."""
    source = random.Random(seed)
    drawn: list[int] = []
    ends = tokenizer().eos_ids
    while len(drawn) < max_tokens:
        if matcher.is_over:
            return drawn
        choices = allowed(matcher)[0]
        assert choices, f"a mask is empty after {tokenizer().decode(drawn)!r}: {matcher.fault}"
        if ends.intersection(choices) and source.random() < 0.5:
            return drawn
        closing = [token for token in choices if token in closing_ids()]
        token = source.choice(closing if closing and source.random() < 0.8 else choices)
        if token in ends:
            return drawn
        matcher.advance((token,))
        assert not matcher.fault
        drawn.append(token)
    return None
