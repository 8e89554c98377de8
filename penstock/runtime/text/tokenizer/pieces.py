"""What each token contributes to the text, as bytes.

Owns the reading of a tokenizer's decoder into per-token pieces, so that text can be made token by token. A decoder whose
work on one token depends on later tokens cannot be read this way and is refused by name. Knows nothing of streams.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from penstock.errors import ModelFileError

SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")

# Substrings the WordPiece decoder tidies in each token once its leading space is there.
_WORDPIECE_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


class TokenPiece(NamedTuple):
    """The bytes of a token, and its text where those bytes are whole characters by themselves."""

    data: bytes
    text: str | None


EMPTY = TokenPiece(b"", "")

Value = str | bytes
Step = Callable[[Value, bool], Value]
"""One decoder applied to one token: (value so far, is it the first of the text) -> value."""


def byte_alphabet() -> dict[str, int]:
    """Characters that stand for bytes in byte-level vocabularies.

    Printable Latin-1 characters stand for themselves; the other 68 bytes follow in order from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if byte not in printable)
    alphabet.update((chr(0x100 + index), byte) for index, byte in enumerate(hidden))
    return alphabet


_SPELT = {byte: character for character, byte in byte_alphabet().items()}


def spelt(data: bytes) -> str:
    """Bytes as byte-level vocabularies spell them."""
    return "".join([_SPELT[byte] for byte in data])


class Pieces:
    """Bytes of every token, worked out when first asked for and kept: at most one entry a token.

    The text of a run of tokens is the UTF-8 text of the first token's piece and the later tokens' pieces joined, less up
    to `leading_spaces` spaces in front where the run begins the text.
    """

    def __init__(self, decoder: Mapping[str, Any] | None, token_text: Callable[[int], str | None]) -> None:
        plan = _Plan(decoder)
        self.leading_spaces = plan.leading_spaces
        self.first_differs = plan.first_differs
        """The first token of a text may have another piece than the same token later."""
        self._steps = tuple(plan.steps)
        self._token_text = token_text
        self.later: Callable[[int], TokenPiece] = _KnownPieces(self).__getitem__
        """What a token adds to text that has begun; nothing for an id outside the vocabulary."""

    def first(self, token_id: int) -> TokenPiece:
        """What the token gives as the first of a text, before leading spaces are dropped."""
        return self.make(token_id, first=True) if self.first_differs else self.later(token_id)

    def join(self, token_ids: Iterable[int], *, at_start: bool) -> bytes:
        """The plain definition of decoding: the bytes of these tokens in order."""
        begun = not at_start
        parts = []
        for token_id in token_ids:
            if not begun and self._token_text(token_id) is not None:
                parts.append(self.first(token_id).data)
                begun = True
            else:
                parts.append(self.later(token_id).data)
        data = b"".join(parts)
        if at_start and self.leading_spaces:
            data = strip_leading(data, self.leading_spaces)
        return data

    def is_token(self, token_id: int) -> bool:
        return self._token_text(token_id) is not None

    def make(self, token_id: int, *, first: bool) -> TokenPiece:
        """Work the piece out."""
        token = self._token_text(token_id)
        if token is None:
            return EMPTY
        value: Value = token
        for step in self._steps:
            value = step(value, first)
        data = value.encode() if isinstance(value, str) else value
        return piece_of(data)


class _KnownPieces(dict[int, TokenPiece]):
    """Pieces by id, filled when first asked for. Ids outside the vocabulary are not kept, so it cannot outgrow it."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self._pieces = pieces

    def __missing__(self, token_id: int) -> TokenPiece:
        piece = self._pieces.make(token_id, first=False)
        if piece is not EMPTY:
            self[token_id] = piece
        return piece


def piece_of(data: bytes) -> TokenPiece:
    try:
        return TokenPiece(data, data.decode())
    except UnicodeDecodeError:
        return TokenPiece(data, None)


def strip_leading(data: bytes, most: int) -> bytes:
    """`data` without its first spaces, `most` at most."""
    spaces = len(data) - len(data.lstrip(b" "))
    return data[min(spaces, most) :]


class _Plan:
    """A decoder's description turned into steps, in order; refuses what cannot be done token by token."""

    def __init__(self, decoder: Mapping[str, Any] | None) -> None:
        self.steps: list[Step] = []
        self.leading_spaces = 0
        self.first_differs = False
        self._fused = False
        if decoder is None:
            self._add_first_differs(lambda value, first: value if first else _prefixed(" ", value))
        else:
            self._read(decoder)

    def _read(self, decoder: Mapping[str, Any]) -> None:
        kind = decoder.get("type")
        readers: dict[Any, Callable[[Mapping[str, Any]], None]] = {
            "Sequence": self._sequence,
            "ByteLevel": self._byte_level,
            "ByteFallback": self._byte_fallback,
            "Replace": self._replace,
            "Fuse": self._fuse,
            "Strip": self._strip,
            "Metaspace": self._metaspace,
            "WordPiece": self._word_piece,
        }
        reader = readers.get(kind)
        if reader is None:
            raise _unreadable(f"decoder {kind!r}")
        reader(decoder)

    def _sequence(self, decoder: Mapping[str, Any]) -> None:
        for part in decoder.get("decoders") or ():
            self._read(part)

    def _byte_level(self, decoder: Mapping[str, Any]) -> None:
        alphabet = byte_alphabet()

        def step(value: Value, first: bool) -> Value:
            if isinstance(value, bytes):
                return value
            try:
                return bytes([alphabet[character] for character in value])
            except KeyError:  # an added token, spelled as plain text
                return value.encode()

        self.steps.append(step)
        self._fused = True

    def _byte_fallback(self, decoder: Mapping[str, Any]) -> None:
        def step(value: Value, first: bool) -> Value:
            byte = byte_token(value) if isinstance(value, str) else None
            return value if byte is None else bytes([byte])

        self.steps.append(step)

    def _replace(self, decoder: Mapping[str, Any]) -> None:
        pattern = (decoder.get("pattern") or {}).get("String")
        content = decoder.get("content")
        # After tokens are joined a longer pattern could match across two of them.
        if not isinstance(pattern, str) or not pattern or not isinstance(content, str):
            raise _unreadable(f"decoder Replace({decoder.get('pattern')!r})")
        if self._fused and len(pattern) > 1:
            raise _unreadable(f"decoder Replace({pattern!r}) over joined tokens")
        self.steps.append(lambda value, first: value.replace(pattern, content) if isinstance(value, str) else value)

    def _fuse(self, decoder: Mapping[str, Any]) -> None:
        self._fused = True

    def _strip(self, decoder: Mapping[str, Any]) -> None:
        content, start, stop = decoder.get("content"), decoder.get("start", 0), decoder.get("stop", 0)
        if self._fused:
            if content != " " or stop:
                raise _unreadable(f"decoder Strip({content!r}, {start}, {stop}) over joined tokens")
            self.leading_spaces += start
            return

        def step(value: Value, first: bool) -> Value:
            if isinstance(value, bytes) or not isinstance(content, str):
                return value
            left = min(len(value) - len(value.lstrip(content)), start)
            value = value[left:]
            right = min(len(value) - len(value.rstrip(content)), stop)
            return value[: len(value) - right]

        self.steps.append(step)

    def _metaspace(self, decoder: Mapping[str, Any]) -> None:
        mark = decoder.get("replacement", SPACE_MARK)
        drops_first = decoder.get("prepend_scheme", "always") != "never"

        def step(value: Value, first: bool) -> Value:
            if isinstance(value, bytes):
                return value
            return value.replace(mark, "" if first and drops_first else " ")

        self._add_first_differs(step)

    def _word_piece(self, decoder: Mapping[str, Any]) -> None:
        prefix, cleanup = decoder.get("prefix", "##"), bool(decoder.get("cleanup", True))

        def step(value: Value, first: bool) -> Value:
            if isinstance(value, bytes):
                return value
            if not first:
                value = value[len(prefix) :] if value.startswith(prefix) else " " + value
            for rough, tidy in _WORDPIECE_CLEANUP if cleanup else ():
                value = value.replace(rough, tidy)
            return value

        self._add_first_differs(step)

    def _add_first_differs(self, step: Step) -> None:
        self.steps.append(step)
        self.first_differs = True


def byte_token(token: str) -> int | None:
    """The byte a SentencePiece byte token such as `<0x0A>` stands for."""
    match = _BYTE_TOKEN.fullmatch(token)
    return int(match[1], 16) if match else None


def _prefixed(prefix: str, value: Value) -> Value:
    return prefix + value if isinstance(value, str) else prefix.encode() + value


def _unreadable(what: str) -> ModelFileError:
    return ModelFileError(
        f"the tokenizer's {what} cannot be applied token by token, so text could not be streamed; "
        "use a tokenizer.json with a byte-level, byte-fallback, Metaspace or WordPiece decoder"
    )
