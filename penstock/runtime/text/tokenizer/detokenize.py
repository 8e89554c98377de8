"""Tokens to text as they come, for one generation.

Owns the few bytes of a character that is not complete yet. Never sees the prompt, so no text of it can appear. What the
whole text is, is said by `Tokenizer.decode`; the deltas here always add up to it.
"""

from codecs import utf_8_decode
from collections.abc import Iterable

from penstock.runtime.text.tokenizer.pieces import TokenPiece, piece_of, strip_leading
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """Feed token ids, get the characters they complete; `flush` once at the end.

    The deltas and the flush joined equal `tokenizer.decode(ids, skip_special=..., at_start=...)`, for every token
    sequence and every way of feeding it. A token costs the same however long the text is.
    """

    __slots__ = ("_begun", "_pending", "_pieces", "_saw_token", "_skipped", "_spaces_to_drop")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        at_start: bool = True,
        visible_ids: frozenset[int] = frozenset(),
    ) -> None:
        """`visible_ids`: special tokens that show although the others are skipped."""
        pieces = tokenizer.pieces
        self._pieces = pieces
        skipped = tokenizer.special_ids if skip_special else frozenset()
        self._skipped = skipped - visible_ids if visible_ids else skipped
        self._pending = b""
        self._saw_token = False
        self._spaces_to_drop = pieces.leading_spaces if at_start else 0
        self._begun = not (at_start and (pieces.first_differs or pieces.leading_spaces))

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text these tokens complete."""
        later, skipped = self._pieces.later, self._skipped
        parts = []
        for token_id in token_ids:
            if token_id in skipped:
                continue
            data, text = later(token_id) if self._begun else self._begin(token_id)
            if text is not None and not self._pending:
                parts.append(text)
            elif data:
                joined = self._pending + data
                text, used = utf_8_decode(joined, "replace", False)
                self._pending = joined[used:]
                parts.append(text)
        return "".join(parts)

    def flush(self) -> str:
        """What is left when no token follows: U+FFFD for a character that was never completed."""
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        return text

    def _begin(self, token_id: int) -> TokenPiece:
        """A token's piece while the text may still have to lose leading spaces."""
        piece = self._pieces.later(token_id) if self._saw_token else self._pieces.first(token_id)
        self._saw_token = self._saw_token or self._pieces.is_token(token_id)
        data = piece.data
        if self._spaces_to_drop:
            stripped = strip_leading(data, self._spaces_to_drop)
            self._spaces_to_drop = 0 if stripped else self._spaces_to_drop - len(data)
            data = stripped
        self._begun = self._saw_token and not self._spaces_to_drop
        return piece_of(data)
