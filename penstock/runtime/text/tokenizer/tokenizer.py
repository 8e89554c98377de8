"""Text to token ids and back, whole or as they come, with the ids the model was trained on.

Owns the tokenizer of one model, read from a Hugging Face directory or from GGUF metadata. Knows nothing of chats, streams
or requests: what a prompt means is decided before it comes here.
"""

import json
import threading
from codecs import utf_8_decode
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers

from penstock.errors import ModelFileError, RequestError
from penstock.runtime.text.tokenizer.pieces import Pieces, TokenPiece, piece_of, strip_leading
from penstock.runtime.text.tokenizer.published import published_metadata
from penstock.runtime.text.tokenizer.vocabulary import ROLE_KEYS, SpecialTokens, tokenizer_from_metadata

MAX_JSON_BYTES = 1 << 26
"""Largest side file (not tokenizer.json) that is read."""


class Tokenizer:
    """Immutable and safe to share between threads; encoding runs without holding the interpreter.

    `decode` is the UTF-8 text of the tokens' bytes in order, invalid bytes shown as U+FFFD: for every token sequence,
    also those no text encodes to. Spaces are never tidied afterwards.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special: SpecialTokens) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = self._backend = backend
        self._plain_backend: tokenizers.Tokenizer | None = None
        self._lock = threading.Lock()
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.eos_ids = special.eos_ids
        """Tokens that end an answer: end of text, end of turn."""
        self.bos_id = special.bos_id
        self.special_tokens: Mapping[str, str] = special.names
        """Texts by role (`bos_token`, `eos_token`, ...): the variables a chat template reads."""
        self.added_ids = frozenset(added)
        """Tokens read as a whole wherever their text stands, special or not."""
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        """Ids are below this; a model may score a few more, which stand for no token."""
        self.pieces = Pieces(_state_of(backend.decoder) or None, self.token)

    @classmethod
    def from_directory(cls, path: str | Path) -> "Tokenizer":
        """Read tokenizer.json, or what a model was published with before there were such files, and special tokens."""
        directory = Path(path)
        file = directory / "tokenizer.json"
        if not file.is_file():
            metadata = published_metadata(directory, read_json(directory / "tokenizer_config.json"))
            if metadata is None:
                raise ModelFileError(
                    f"{directory} has no tokenizer.json, tokenizer.model or *.tiktoken; fetch one, or use its GGUF file"
                )
            backend, special = guarded(lambda: tokenizer_from_metadata(metadata), str(directory))
            stated = _special_tokens(directory, backend)
            bos_id = special.bos_id if stated.bos_id is None else stated.bos_id
            names = {**special.names, **stated.names}
            return cls(backend, SpecialTokens(bos_id, special.eos_ids | stated.eos_ids, names))
        backend = guarded(lambda: tokenizers.Tokenizer.from_file(str(file)), str(file))
        return cls(backend, _special_tokens(directory, backend))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> "Tokenizer":
        """Build the tokenizer that a GGUF file's metadata describe."""
        backend, special = guarded(lambda: tokenizer_from_metadata(metadata), "the file's tokenizer.ggml metadata")
        return cls(backend, special)

    def encode(self, text: str, *, special: bool, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        `special` adds the tokens the model expects around a text (beginning, end). `parse_special` reads text that
        spells a special token as that token; without it such text is ordinary text.
        """
        return self.encode_batch([text], special=special, parse_special=parse_special)[0]

    def encode_batch(self, texts: Sequence[str], *, special: bool, parse_special: bool = True) -> list[list[int]]:
        for text in texts:
            check_unicode(text)
        backend = self._backend if parse_special else self._backend_without_special()
        encodings = backend.encode_batch_fast(list(texts), add_special_tokens=special)
        return [encoding.ids for encoding in encodings]

    def spellings(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Words as the runs of tokens they are: at the beginning of a text, and after a space. A text may still be written in
        other tokens than its own; that is rare."""
        if not words:
            return ()
        texts = [text for word in words for text in (word, " " + word.lstrip())]
        runs = self.encode_batch(texts, special=False, parse_special=False)
        return tuple(dict.fromkeys(tuple(run) for run in runs if run))

    def at_least(self, text: str) -> int:
        """A number of tokens that `text` has at least, found without encoding it; 0 where nothing is known.

        Enough to refuse a prompt that is too long many times over before any work is done on it.
        """
        return len(text.encode("utf-8", "replace")) // self._most_bytes_per_token if self._most_bytes_per_token else 0

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True, at_start: bool = True) -> str:
        """Text of `token_ids`.

        `at_start`: they begin a text, so the space that SentencePiece and WordPiece put before a first word is left
        out. Without it they continue one, and every space shows.
        """
        kept = (i for i in token_ids if i not in self.special_ids) if skip_special else token_ids
        return self.pieces.join(kept, at_start=at_start).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to a text that has begun; empty for an id that stands for no token."""
        return self.pieces.later(token_id).data

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it."""
        if not 0 <= token_id < self.vocab_size:
            return None
        return self._backend.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it."""
        return self._backend.token_to_id(token)

    @cached_property
    def control_texts(self) -> frozenset[str]:
        """Texts that are read as special tokens: turn markers, ends of text."""
        added = self._backend.get_added_tokens_decoder().values()
        return frozenset(str(token.content) for token in added if token.special and token.content)

    @cached_property
    def _most_bytes_per_token(self) -> int:
        """Bytes of text that one token can stand for; 0 where that has no bound."""
        added = self._backend.get_added_tokens_decoder().values()
        normalizer = _state_of(self._backend.normalizer)
        steps = normalizer.get("normalizers", [normalizer] if normalizer else [])
        if any(token.lstrip or token.rstrip for token in added) or not all(map(_keeps_length, steps)):
            return 0
        # A composed character may be a third of its decomposed form.
        shrinking = 3 if any(step["type"] == "NFC" for step in steps) else 1
        return shrinking * max(len(token.encode()) for token in self._backend.get_vocab(with_added_tokens=True))

    def _backend_without_special(self) -> tokenizers.Tokenizer:
        """The same tokenizer, blind to special tokens in text.

        A second object that shares the vocabulary: the switch is a property of the whole tokenizer, and turning it
        while another thread encodes would change that thread's result.
        """
        with self._lock:
            if self._plain_backend is None:
                self._plain_backend = _blind_copy(self._backend)
            return self._plain_backend


class Detokenizer:
    """Feed the token ids of one generation, get the characters they complete; `flush` once at the end.

    Owns the few bytes of a character that is not complete yet. Never sees the prompt, so no text of it can appear. The
    deltas and the flush joined equal `tokenizer.decode(ids, skip_special=..., at_start=...)`, for every token sequence and
    every way of feeding it. A token costs the same however long the text is.
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


def check_unicode(text: str) -> None:
    """Half a surrogate pair is not a character and has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text has a lone surrogate at character {error.start}, which is not a character; remove it",
            param="prompt",
        ) from error


def guarded(build: Any, source: str) -> Any:
    """Run `build`, turning any failure of the tokenizer library, panics too, into a `ModelFileError`."""
    try:
        return build()
    except ModelFileError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # A panic of the library derives from BaseException and would otherwise pass every handler.
        raise ModelFileError(f"{source} does not describe a usable tokenizer: {str(error)[:200]}") from error


def _state_of(part: Any) -> dict[str, Any]:
    """What a part of the tokenizer is made of, as tokenizer.json would say it; empty for a part that is not there."""
    state: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return state


def _keeps_length(normalizer: Mapping[str, Any]) -> bool:
    """It makes no text shorter, or by little."""
    if normalizer.get("type") != "Replace":
        return normalizer.get("type") in ("Prepend", "NFC")
    pattern = normalizer.get("pattern", {}).get("String", "")
    return bool(pattern) and len(normalizer.get("content", "")) >= len(pattern)


def _blind_copy(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    copy = tokenizers.Tokenizer(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (value := getattr(backend, part)) is not None:
            setattr(copy, part, value)
    added = backend.get_added_tokens_decoder()
    # Tokens outside the model's vocabulary take the next free id, so they go in by id.
    in_order = [added[token_id] for token_id in sorted(added)]
    for is_special, run in groupby(in_order, key=lambda token: bool(token.special)):
        (copy.add_special_tokens if is_special else copy.add_tokens)(list(run))
    if {i: str(t.content) for i, t in copy.get_added_tokens_decoder().items()} != {
        i: str(t.content) for i, t in added.items()
    }:
        copy = tokenizers.Tokenizer.from_str(backend.to_str())
    copy.encode_special_tokens = True
    return copy


def _special_tokens(directory: Path, backend: tokenizers.Tokenizer) -> SpecialTokens:
    config = read_json(directory / "tokenizer_config.json")
    fallback = read_json(directory / "special_tokens_map.json")
    generation = read_json(directory / "generation_config.json") or read_json(directory / "config.json")
    names, ids = {}, {}
    for role in ROLE_KEYS:
        token = _token_text(config.get(role)) or _token_text(fallback.get(role))
        token_id = None if token is None else backend.token_to_id(token)
        if token is not None and token_id is not None:
            names[role], ids[role] = token, token_id
    size = backend.get_vocab_size(with_added_tokens=True)
    ends = generation.get("eos_token_id")
    eos_ids = {_checked_id(end, size) for end in (ends if isinstance(ends, list) else [ends]) if end is not None}
    if "eos_token" in ids:
        eos_ids.add(ids["eos_token"])
    return SpecialTokens(ids.get("bos_token"), frozenset(eos_ids), names)


def _token_text(value: Any) -> str | None:
    """A special token is written as its text, or as an object that holds it."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _checked_id(value: Any, size: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
        raise ModelFileError(f"eos_token_id is {value!r:.60}; it must be a token id below {size}")
    return value


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file."""
    if not file.is_file():
        return {}
    if file.stat().st_size > MAX_JSON_BYTES:
        raise ModelFileError(f"{file} is larger than {MAX_JSON_BYTES} bytes; it should hold a few settings")
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file} is not JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{file} holds {type(value).__name__}; it must hold an object")
    return value
