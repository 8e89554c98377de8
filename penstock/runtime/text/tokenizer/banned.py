"""Words that must not be written, as the runs of tokens they are: at the beginning of a text, and after a space."""

from collections.abc import Sequence

from penstock.runtime.text.tokenizer.tokenizer import Tokenizer


def banned_sequences(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """For the sampling parameter of that name. A text may still be written in other tokens than its own; that is rare."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, " " + word.lstrip()):
            found[tuple(tokenizer.encode(text, special=False, parse_special=False))] = None
    return tuple(token_ids for token_ids in found if token_ids)
